// SPDX-License-Identifier: Apache-2.0
// Decoders with layer norms and a plain feed-forward block. Source of the shapes and of each
// default: transformers 5.23, models/<type>/modeling_<type>.py and configuration_<type>.py.
#include "plan/models/architecture.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace penstock::plan {

namespace {

struct Field {
    std::string_view names;
    std::uint64_t fallback;
};

Shape read_shape(ConfigFields& fields, std::uint64_t vocabulary, const Field& hidden,
                 const Field& layers, const Field& heads, bool divides_hidden = false) {
    Shape is;
    is.vocabulary = fields.dimension("vocab_size", vocabulary);
    is.hidden = fields.dimension(hidden.names, hidden.fallback);
    is.layers = fields.dimension(layers.names, layers.fallback, 1, kLayersMax);
    is.heads = fields.dimension(heads.names, heads.fallback, 1,
                                divides_hidden ? is.hidden : kDimensionMax);
    is.inner = 4 * is.hidden;
    return is;
}

// The models with as many keys and values as queries.
void begin(ArchitectureBuilder& out, const Shape& is) {
    out.set_shape(is);
    out.cache(2 * is.hidden);
}

void head(ConfigFields& fields, ArchitectureBuilder& out, const Shape& is, bool tied,
          std::uint64_t width, bool bias = false) {
    if (!has_token_head(fields)) {
        return;
    }
    out.last("lm_head.",
             {{"weight", kNamed, is_tied(fields, tied) ? 0 : is.vocabulary, width, kByVocabulary},
              {"bias", kNamed, bias ? is.vocabulary : 0, {}, kByVocabulary}});
}

void gpt2(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape is = read_shape(fields, 50257, {"n_embd|hidden_size", 768},
                          {"n_layer|num_hidden_layers", 12}, {"n_head|num_attention_heads", 12});
    is.inner = fields.derived("n_inner", is.inner);
    const std::uint64_t positions = fields.dimension("n_positions|max_position_embeddings", 1024);
    if (fields.flag("add_cross_attention", false)) {
        fields.refuse("add_cross_attention is true; expected a decoder without an encoder");
    }
    begin(out, is);
    out.first("transformer.", {{"wte", kWeight, is.vocabulary, is.hidden, kByVocabulary},
                               {"wpe", kWeight, positions, is.hidden}});
    out.each("transformer.h.*.", {{"ln_1", kBias, is.hidden},
                                  {"attn.c_attn", kBias, 3 * is.hidden, is.hidden, kByHeads},
                                  {"attn.c_proj", kBias, is.hidden, is.hidden, kByHeadInputs},
                                  {"ln_2", kBias, is.hidden},
                                  {"mlp.c_fc", kBias, is.inner, is.hidden, kByInner},
                                  {"mlp.c_proj", kBias, is.hidden, is.inner, kByInnerInputs}});
    out.last("transformer.", {{"ln_f", kBias, is.hidden}});
    head(fields, out, is, true, is.hidden);
}

void gptj(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape is = read_shape(fields, 50400, {"n_embd|hidden_size", 4096},
                          {"n_layer|num_hidden_layers", 28}, {"n_head|num_attention_heads", 16});
    is.inner = fields.derived("n_inner", is.inner);
    begin(out, is);
    out.first("transformer.", {{"wte", kWeight, is.vocabulary, is.hidden, kByVocabulary}});
    out.each("transformer.h.*.", {{"ln_1", kBias, is.hidden},
                                  {"attn.k_proj", kWeight, is.hidden, is.hidden, kByHeads},
                                  {"attn.v_proj", kWeight, is.hidden, is.hidden, kByHeads},
                                  {"attn.q_proj", kWeight, is.hidden, is.hidden, kByHeads},
                                  {"attn.out_proj", kWeight, is.hidden, is.hidden, kByHeadInputs},
                                  {"mlp.fc_in", kBias, is.inner, is.hidden, kByInner},
                                  {"mlp.fc_out", kBias, is.hidden, is.inner, kByInnerInputs}});
    out.last("transformer.", {{"ln_f", kBias, is.hidden}});
    head(fields, out, is, false, is.hidden, true);
}

void gpt_neox(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape is = read_shape(fields, 50432, {"hidden_size", 6144}, {"num_hidden_layers", 44},
                          {"num_attention_heads", 64});
    is.inner = fields.dimension("intermediate_size", 24576);
    const Parts bias = fields.flag("attention_bias", true) ? kBias : kWeight;
    begin(out, is);
    out.first("gpt_neox.", {{"embed_in", kWeight, is.vocabulary, is.hidden, kByVocabulary}});
    out.each("gpt_neox.layers.*.",
             {{"input_layernorm", kBias, is.hidden},
              {"post_attention_layernorm", kBias, is.hidden},
              {"attention.query_key_value", bias, 3 * is.hidden, is.hidden, kByHeads},
              {"attention.dense", bias, is.hidden, is.hidden, kByHeadInputs},
              {"mlp.dense_h_to_4h", kBias, is.inner, is.hidden, kByInner},
              {"mlp.dense_4h_to_h", kBias, is.hidden, is.inner, kByInnerInputs}});
    out.last("gpt_neox.", {{"final_layer_norm", kBias, is.hidden}});
    head(fields, out, is, false, is.hidden);
}

void bloom(ConfigFields& fields, ArchitectureBuilder& out) {
    const Shape is =
        read_shape(fields, 250880, {"hidden_size|n_embed", 64}, {"n_layer|num_hidden_layers", 2},
                   {"n_head|num_attention_heads", 8});
    begin(out, is);
    out.first("transformer.",
              {{"word_embeddings", kWeight, is.vocabulary, is.hidden, kByVocabulary},
               {"word_embeddings_layernorm", kBias, is.hidden}});
    out.each("transformer.h.*.",
             {{"input_layernorm", kBias, is.hidden},
              {"self_attention.query_key_value", kBias, 3 * is.hidden, is.hidden, kByHeads},
              {"self_attention.dense", kBias, is.hidden, is.hidden, kByHeadInputs},
              {"post_attention_layernorm", kBias, is.hidden},
              {"mlp.dense_h_to_4h", kBias, is.inner, is.hidden, kByInner},
              {"mlp.dense_4h_to_h", kBias, is.hidden, is.inner, kByInnerInputs}});
    out.last("transformer.", {{"ln_f", kBias, is.hidden}});
    head(fields, out, is, true, is.hidden);
}

void opt(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape is = read_shape(fields, 50272, {"hidden_size", 768}, {"num_hidden_layers", 12},
                          {"num_attention_heads", 12});
    is.inner = fields.dimension("ffn_dim", 3072);
    const std::uint64_t width = fields.derived("word_embed_proj_dim", is.hidden);
    const std::uint64_t projected = width == is.hidden ? 0 : is.hidden;
    const std::uint64_t positions = fields.dimension("max_position_embeddings", 2048);
    const Parts bias = fields.flag("enable_bias", true) ? kBias : kWeight;
    const bool affine = fields.flag("layer_norm_elementwise_affine", true);
    const bool last_norm = affine && fields.flag("do_layer_norm_before", true) &&
                           !fields.flag("_remove_final_layer_norm", false);
    const std::uint64_t norm = affine ? is.hidden : 0;
    begin(out, is);
    // Two more positions than the model has: OPT's padding.
    out.first("model.decoder.", {{"embed_tokens", kWeight, is.vocabulary, width, kByVocabulary},
                                 {"embed_positions", kWeight, positions + 2, is.hidden},
                                 {"project_in", kWeight, projected, width}});
    out.last("model.decoder.", {{"project_out", kWeight, width, projected}});
    out.each("model.decoder.layers.*.",
             {{"self_attn.k_proj", bias, is.hidden, is.hidden, kByHeads},
              {"self_attn.v_proj", bias, is.hidden, is.hidden, kByHeads},
              {"self_attn.q_proj", bias, is.hidden, is.hidden, kByHeads},
              {"self_attn.out_proj", bias, is.hidden, is.hidden, kByHeadInputs},
              {"fc1", bias, is.inner, is.hidden, kByInner},
              {"fc2", bias, is.hidden, is.inner, kByInnerInputs},
              {"self_attn_layer_norm", kBias, norm},
              {"final_layer_norm", kBias, norm}});
    out.last("model.decoder.", {{"final_layer_norm", kBias, last_norm ? is.hidden : 0}});
    head(fields, out, is, true, width);
}

void falcon(ConfigFields& fields, ArchitectureBuilder& out) {
    Shape is =
        read_shape(fields, 65024, {"hidden_size|n_embed", 4544}, {"num_hidden_layers|n_layer", 32},
                   {"num_attention_heads|n_head", 71}, true);
    is.key_heads = fields.derived("num_kv_heads|n_head_kv", is.heads);
    is.inner = fields.derived("ffn_hidden_size", is.inner);
    const bool newer = fields.flag("new_decoder_architecture", false);
    const bool parallel = fields.flag("parallel_attn", true);
    const Parts bias = fields.flag("bias", false) ? kBias : kWeight;
    const std::uint64_t norms = fields.derived("num_ln_in_parallel_attn", newer ? 2 : 1);
    const bool two_norms = parallel && norms == 2;
    if (is.hidden % is.heads != 0) {
        fields.refuse(
            fmt::format("hidden_size is {}; expected a multiple of num_attention_heads, {}",
                        is.hidden, is.heads));
        return;
    }
    const bool one_key = fields.flag("multi_query", true);
    is.key_heads = newer ? is.key_heads : one_key ? 1 : is.heads;
    is.head_dim = is.hidden / is.heads;
    const Exact keys = Exact(2 * is.key_heads) * is.head_dim;
    out.set_shape(is);
    out.cache(keys);
    out.first("transformer.",
              {{"word_embeddings", kWeight, is.vocabulary, is.hidden, kByVocabulary}});
    out.each("transformer.h.*.",
             {{"self_attention.query_key_value", bias, keys + is.hidden, is.hidden, kByKeyHeads},
              {"self_attention.dense", bias, is.hidden, is.hidden, kByHeadInputs},
              {"mlp.dense_h_to_4h", bias, is.inner, is.hidden, kByInner},
              {"mlp.dense_4h_to_h", bias, is.hidden, is.inner, kByInnerInputs},
              {"input_layernorm", kBias, two_norms ? 0 : is.hidden},
              {"post_attention_layernorm", kBias, parallel ? 0 : is.hidden},
              {"ln_attn", kBias, two_norms ? is.hidden : 0},
              {"ln_mlp", kBias, two_norms ? is.hidden : 0}});
    out.last("transformer.", {{"ln_f", kBias, is.hidden}});
    head(fields, out, is, true, is.hidden);
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
