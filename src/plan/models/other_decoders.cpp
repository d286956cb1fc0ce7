// SPDX-License-Identifier: Apache-2.0
// Decoders with layer norms and a plain feed-forward block. Source of the shapes and of each
// default: transformers 5.23, models/<type>/modeling_<type>.py and configuration_<type>.py.
#include "plan/models/architecture.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace penstock::plan {

namespace {

struct Shape {
    std::uint64_t vocabulary = 0;
    std::uint64_t hidden = 0;
    std::uint64_t layers = 0;
    std::uint64_t heads = 0;
    std::uint64_t inner = 0;
};

void norm(ArchitectureBuilder& out, const Layers& layers, const std::string& name,
          std::uint64_t width) {
    out.vector(layers, name + ".weight", width);
    out.vector(layers, name + ".bias", width);
}

void last_norm(ArchitectureBuilder& out, const std::string& name, std::uint64_t width) {
    out.vector(TensorPlace::kEnd, name + ".weight", width);
    out.vector(TensorPlace::kEnd, name + ".bias", width);
}

Division rows_of(const Shape& shape) {
    return {TensorSplit::kVocabulary, shape.vocabulary};
}

void head(ConfigFields& fields, ArchitectureBuilder& out, const std::string& name,
          const Shape& shape, bool tied, std::uint64_t width, bool bias = false) {
    if (!has_token_head(fields)) {
        return;
    }
    if (!is_tied(fields, tied)) {
        out.matrix(TensorPlace::kEnd, name + ".weight", shape.vocabulary, width, rows_of(shape));
    }
    if (bias) {
        out.vector(TensorPlace::kEnd, name + ".bias", shape.vocabulary, rows_of(shape));
    }
}

void cache_of_all_heads(ArchitectureBuilder& out, const Shape& shape) {
    out.cache(Exact(2) * shape.hidden, shape.layers);
}

void gpt2(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape shape;
    shape.vocabulary = fields.dimension({"vocab_size"}, 50257);
    shape.hidden = fields.dimension({"n_embd", "hidden_size"}, 768);
    shape.layers = fields.dimension({"n_layer", "num_hidden_layers"}, 12, 1, kLayersMax);
    shape.heads = fields.dimension({"n_head", "num_attention_heads"}, 12);
    const Exact four = Exact(4) * shape.hidden;
    shape.inner = fields.derived({"n_inner"}, four.value());
    const std::uint64_t positions =
        fields.dimension({"n_positions", "max_position_embeddings"}, 1024);
    if (fields.flag("add_cross_attention", false)) {
        fields.refuse("add_cross_attention is true; expected a decoder without an encoder");
    }
    const Layers all = layers_from(0, shape.layers);
    const Division by_heads{TensorSplit::kHeads, shape.heads};
    const Division by_inner{TensorSplit::kInner, shape.inner};
    out.set_layers(shape.layers);
    cache_of_all_heads(out, shape);
    out.matrix(TensorPlace::kBegin, "transformer.wte.weight", shape.vocabulary, shape.hidden,
               rows_of(shape));
    out.matrix(TensorPlace::kBegin, "transformer.wpe.weight", positions, shape.hidden);
    norm(out, all, "transformer.h.*.ln_1", shape.hidden);
    out.linear(all, "transformer.h.*.attn.c_attn", Exact(3) * shape.hidden, shape.hidden, true,
               by_heads);
    out.linear(all, "transformer.h.*.attn.c_proj", shape.hidden, shape.hidden, true, by_heads,
               true);
    norm(out, all, "transformer.h.*.ln_2", shape.hidden);
    out.linear(all, "transformer.h.*.mlp.c_fc", shape.inner, shape.hidden, true, by_inner);
    out.linear(all, "transformer.h.*.mlp.c_proj", shape.hidden, shape.inner, true, by_inner, true);
    last_norm(out, "transformer.ln_f", shape.hidden);
    head(fields, out, "lm_head", shape, true, shape.hidden);
}

void gptj(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape shape;
    shape.vocabulary = fields.dimension({"vocab_size"}, 50400);
    shape.hidden = fields.dimension({"n_embd", "hidden_size"}, 4096);
    shape.layers = fields.dimension({"n_layer", "num_hidden_layers"}, 28, 1, kLayersMax);
    shape.heads = fields.dimension({"n_head", "num_attention_heads"}, 16);
    shape.inner = fields.derived({"n_inner"}, (Exact(4) * shape.hidden).value());
    const Layers all = layers_from(0, shape.layers);
    const Division by_heads{TensorSplit::kHeads, shape.heads};
    const Division by_inner{TensorSplit::kInner, shape.inner};
    out.set_layers(shape.layers);
    cache_of_all_heads(out, shape);
    out.matrix(TensorPlace::kBegin, "transformer.wte.weight", shape.vocabulary, shape.hidden,
               rows_of(shape));
    norm(out, all, "transformer.h.*.ln_1", shape.hidden);
    for (const char* name : {"k_proj", "v_proj", "q_proj"}) {
        out.linear(all, std::string("transformer.h.*.attn.") + name, shape.hidden, shape.hidden,
                   false, by_heads);
    }
    out.linear(all, "transformer.h.*.attn.out_proj", shape.hidden, shape.hidden, false, by_heads,
               true);
    out.linear(all, "transformer.h.*.mlp.fc_in", shape.inner, shape.hidden, true, by_inner);
    out.linear(all, "transformer.h.*.mlp.fc_out", shape.hidden, shape.inner, true, by_inner, true);
    last_norm(out, "transformer.ln_f", shape.hidden);
    head(fields, out, "lm_head", shape, false, shape.hidden, true);
}

void gpt_neox(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape shape;
    shape.vocabulary = fields.dimension({"vocab_size"}, 50432);
    shape.hidden = fields.dimension({"hidden_size"}, 6144);
    shape.layers = fields.dimension({"num_hidden_layers"}, 44, 1, kLayersMax);
    shape.heads = fields.dimension({"num_attention_heads"}, 64);
    shape.inner = fields.dimension({"intermediate_size"}, 24576);
    const bool bias = fields.flag("attention_bias", true);
    const Layers all = layers_from(0, shape.layers);
    const std::string layer = "gpt_neox.layers.*.";
    const Division by_heads{TensorSplit::kHeads, shape.heads};
    const Division by_inner{TensorSplit::kInner, shape.inner};
    out.set_layers(shape.layers);
    cache_of_all_heads(out, shape);
    out.matrix(TensorPlace::kBegin, "gpt_neox.embed_in.weight", shape.vocabulary, shape.hidden,
               rows_of(shape));
    norm(out, all, layer + "input_layernorm", shape.hidden);
    norm(out, all, layer + "post_attention_layernorm", shape.hidden);
    out.linear(all, layer + "attention.query_key_value", Exact(3) * shape.hidden, shape.hidden,
               bias, by_heads);
    out.linear(all, layer + "attention.dense", shape.hidden, shape.hidden, bias, by_heads, true);
    out.linear(all, layer + "mlp.dense_h_to_4h", shape.inner, shape.hidden, true, by_inner);
    out.linear(all, layer + "mlp.dense_4h_to_h", shape.hidden, shape.inner, true, by_inner, true);
    last_norm(out, "gpt_neox.final_layer_norm", shape.hidden);
    head(fields, out, "lm_head", shape, false, shape.hidden);
}

void bloom(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape shape;
    shape.vocabulary = fields.dimension({"vocab_size"}, 250880);
    shape.hidden = fields.dimension({"hidden_size", "n_embed"}, 64);
    shape.layers = fields.dimension({"n_layer", "num_hidden_layers"}, 2, 1, kLayersMax);
    shape.heads = fields.dimension({"n_head", "num_attention_heads"}, 8);
    shape.inner = (Exact(4) * shape.hidden).value();
    const Layers all = layers_from(0, shape.layers);
    const std::string layer = "transformer.h.*.";
    const Division by_heads{TensorSplit::kHeads, shape.heads};
    const Division by_inner{TensorSplit::kInner, shape.inner};
    out.set_layers(shape.layers);
    cache_of_all_heads(out, shape);
    out.matrix(TensorPlace::kBegin, "transformer.word_embeddings.weight", shape.vocabulary,
               shape.hidden, rows_of(shape));
    out.vector(TensorPlace::kBegin, "transformer.word_embeddings_layernorm.weight", shape.hidden);
    out.vector(TensorPlace::kBegin, "transformer.word_embeddings_layernorm.bias", shape.hidden);
    norm(out, all, layer + "input_layernorm", shape.hidden);
    out.linear(all, layer + "self_attention.query_key_value", Exact(3) * shape.hidden, shape.hidden,
               true, by_heads);
    out.linear(all, layer + "self_attention.dense", shape.hidden, shape.hidden, true, by_heads,
               true);
    norm(out, all, layer + "post_attention_layernorm", shape.hidden);
    out.linear(all, layer + "mlp.dense_h_to_4h", shape.inner, shape.hidden, true, by_inner);
    out.linear(all, layer + "mlp.dense_4h_to_h", shape.hidden, shape.inner, true, by_inner, true);
    last_norm(out, "transformer.ln_f", shape.hidden);
    head(fields, out, "lm_head", shape, true, shape.hidden);
}

void opt(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape shape;
    shape.vocabulary = fields.dimension({"vocab_size"}, 50272);
    shape.hidden = fields.dimension({"hidden_size"}, 768);
    shape.layers = fields.dimension({"num_hidden_layers"}, 12, 1, kLayersMax);
    shape.heads = fields.dimension({"num_attention_heads"}, 12);
    shape.inner = fields.dimension({"ffn_dim"}, 3072);
    const std::uint64_t width = fields.derived({"word_embed_proj_dim"}, shape.hidden);
    const std::uint64_t positions = fields.dimension({"max_position_embeddings"}, 2048);
    const bool bias = fields.flag("enable_bias", true);
    const bool affine = fields.flag("layer_norm_elementwise_affine", true);
    const Layers all = layers_from(0, shape.layers);
    const std::string layer = "model.decoder.layers.*.";
    const Division by_heads{TensorSplit::kHeads, shape.heads};
    const Division by_inner{TensorSplit::kInner, shape.inner};
    out.set_layers(shape.layers);
    cache_of_all_heads(out, shape);
    out.matrix(TensorPlace::kBegin, "model.decoder.embed_tokens.weight", shape.vocabulary, width,
               rows_of(shape));
    // Two more positions than the model has: OPT's padding.
    out.matrix(TensorPlace::kBegin, "model.decoder.embed_positions.weight", Exact(positions) + 2,
               shape.hidden);
    if (width != shape.hidden) {
        out.matrix(TensorPlace::kBegin, "model.decoder.project_in.weight", shape.hidden, width);
        out.matrix(TensorPlace::kEnd, "model.decoder.project_out.weight", width, shape.hidden);
    }
    for (const char* name : {"k_proj", "v_proj", "q_proj"}) {
        out.linear(all, layer + "self_attn." + name, shape.hidden, shape.hidden, bias, by_heads);
    }
    out.linear(all, layer + "self_attn.out_proj", shape.hidden, shape.hidden, bias, by_heads, true);
    out.linear(all, layer + "fc1", shape.inner, shape.hidden, bias, by_inner);
    out.linear(all, layer + "fc2", shape.hidden, shape.inner, bias, by_inner, true);
    if (affine) {
        norm(out, all, layer + "self_attn_layer_norm", shape.hidden);
        norm(out, all, layer + "final_layer_norm", shape.hidden);
        if (fields.flag("do_layer_norm_before", true) &&
            !fields.flag("_remove_final_layer_norm", false)) {
            last_norm(out, "model.decoder.final_layer_norm", shape.hidden);
        }
    }
    head(fields, out, "lm_head", shape, true, width);
}

void falcon(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape shape;
    shape.vocabulary = fields.dimension({"vocab_size"}, 65024);
    shape.hidden = fields.dimension({"hidden_size", "n_embed"}, 4544);
    shape.layers = fields.dimension({"num_hidden_layers", "n_layer"}, 32, 1, kLayersMax);
    shape.heads = fields.dimension({"num_attention_heads", "n_head"}, 71, 1, shape.hidden);
    const std::uint64_t key_heads = fields.derived({"num_kv_heads", "n_head_kv"}, shape.heads);
    shape.inner = fields.derived({"ffn_hidden_size"}, (Exact(4) * shape.hidden).value());
    const bool newer = fields.flag("new_decoder_architecture", false);
    const bool parallel = fields.flag("parallel_attn", true);
    const bool bias = fields.flag("bias", false);
    const std::uint64_t parallel_norms = fields.derived({"num_ln_in_parallel_attn"}, newer ? 2 : 1);
    if (shape.hidden % shape.heads != 0) {
        fields.refuse("hidden_size is " + std::to_string(shape.hidden) +
                      "; expected a multiple of num_attention_heads, " +
                      std::to_string(shape.heads));
        return;
    }
    const Exact head_dim = shape.hidden / shape.heads;
    const bool one_key = fields.flag("multi_query", true);
    const Exact joined = newer     ? (Exact(2) * key_heads + shape.heads) * head_dim
                         : one_key ? Exact(shape.hidden) + Exact(2) * head_dim
                                   : Exact(3) * shape.hidden;
    const Layers all = layers_from(0, shape.layers);
    const std::string layer = "transformer.h.*.";
    const Division by_heads{TensorSplit::kHeads, shape.heads};
    const Division by_keys{TensorSplit::kKeyHeads, newer ? key_heads : one_key ? 1 : shape.heads};
    const Division by_inner{TensorSplit::kInner, shape.inner};
    out.set_layers(shape.layers);
    out.cache(Exact(2) * (newer ? key_heads : one_key ? 1 : shape.heads) * head_dim, shape.layers);
    out.matrix(TensorPlace::kBegin, "transformer.word_embeddings.weight", shape.vocabulary,
               shape.hidden, rows_of(shape));
    out.linear(all, layer + "self_attention.query_key_value", joined, shape.hidden, bias, by_keys);
    out.linear(all, layer + "self_attention.dense", shape.hidden, shape.hidden, bias, by_heads,
               true);
    out.linear(all, layer + "mlp.dense_h_to_4h", shape.inner, shape.hidden, bias, by_inner);
    out.linear(all, layer + "mlp.dense_4h_to_h", shape.hidden, shape.inner, bias, by_inner, true);
    if (!parallel) {
        norm(out, all, layer + "input_layernorm", shape.hidden);
        norm(out, all, layer + "post_attention_layernorm", shape.hidden);
    } else if (parallel_norms == 2) {
        norm(out, all, layer + "ln_attn", shape.hidden);
        norm(out, all, layer + "ln_mlp", shape.hidden);
    } else {
        norm(out, all, layer + "input_layernorm", shape.hidden);
    }
    last_norm(out, "transformer.ln_f", shape.hidden);
    head(fields, out, "lm_head", shape, true, shape.hidden);
}

constexpr std::array<Architecture, 6> kKnown{{{"gpt2", gpt2},
                                              {"gptj", gptj},
                                              {"gpt_neox", gpt_neox},
                                              {"bloom", bloom},
                                              {"opt", opt},
                                              {"falcon", falcon}}};

}  // namespace

std::span<const Architecture> other_decoders() {
    return kKnown;
}

}  // namespace penstock::plan
