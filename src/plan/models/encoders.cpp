// SPDX-License-Identifier: Apache-2.0
// Encoders, and encoders with a decoder. Source of the shapes and of each default: transformers
// 5.23, models/bert, models/roberta, models/t5, models/siglip, models/gemma3.
#include "plan/models/architecture.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

namespace penstock::plan {

namespace {

struct BertNames {
    std::string model;
    std::string head;
    std::string dense;
    std::string norm;
    std::uint64_t vocabulary = 0;
};

void describe_bert(ConfigFields& fields, ArchitectureBuilder& out, const BertNames& names) {
    Shape is;
    is.vocabulary = fields.dimension("vocab_size", names.vocabulary);
    is.hidden = fields.dimension("hidden_size", 768);
    is.layers = fields.dimension("num_hidden_layers", 12, 1, kLayersMax);
    is.heads = fields.dimension("num_attention_heads", 12);
    is.inner = fields.dimension("intermediate_size", 3072);
    const std::uint64_t positions = fields.dimension("max_position_embeddings", 512);
    const std::uint64_t types = fields.dimension("type_vocab_size", 2);
    if (is.hidden % is.heads != 0) {
        fields.refuse(
            fmt::format("hidden_size is {}; expected a multiple of num_attention_heads, {}",
                        is.hidden, is.heads));
    }
    if (fields.flag("add_cross_attention", false)) {
        fields.refuse("add_cross_attention is true; expected a model without another encoder");
    }
    // The class that the file names says what the head is.
    const std::string named = architecture_named(fields, "a head for masked tokens was assumed");
    const std::string_view name = named;
    const bool both = name.ends_with("ForPreTraining");
    const bool none = name.ends_with("Model") && !name.ends_with("LMHeadModel");
    if (!name.empty() && !both && !none && !name.ends_with("ForMaskedLM") &&
        !name.ends_with("LMHeadModel") && !name.ends_with("ForCausalLM")) {
        fields.assume(
            fmt::format("architectures names \"{}\"; a head for masked tokens was counted "
                        "in place of its own head",
                        name.substr(0, 60)));
    }
    const std::uint64_t tokens = none ? 0 : is.vocabulary;
    const std::uint64_t dense = none ? 0 : is.hidden;
    const std::uint64_t pooled = both || none ? is.hidden : 0;
    const bool own = !none && !is_tied(fields, true);
    out.set_shape(is);
    out.first(names.model + "embeddings.",
              {{"word_embeddings", kWeight, is.vocabulary, is.hidden, kByVocabulary},
               {"position_embeddings", kWeight, positions, is.hidden},
               {"token_type_embeddings", kWeight, types, is.hidden},
               {"LayerNorm", kBias, is.hidden}});
    out.each(names.model + "encoder.layer.*.",
             {{"attention.self.query", kBias, is.hidden, is.hidden, kByHeads},
              {"attention.self.key", kBias, is.hidden, is.hidden, kByHeads},
              {"attention.self.value", kBias, is.hidden, is.hidden, kByHeads},
              {"attention.output.dense", kBias, is.hidden, is.hidden, kByHeadInputs},
              {"attention.output.LayerNorm", kBias, is.hidden},
              {"intermediate.dense", kBias, is.inner, is.hidden, kByInner},
              {"output.dense", kBias, is.hidden, is.inner, kByInnerInputs},
              {"output.LayerNorm", kBias, is.hidden}});
    out.last("", {{names.model + "pooler.dense", kBias, pooled, is.hidden},
                  {names.dense, kBias, dense, is.hidden},
                  {names.norm, kBias, dense},
                  {names.head + "decoder", kBias, own ? tokens : 0, is.hidden, kByVocabulary},
                  {names.head + "bias", kNamed, tokens, {}, kByVocabulary},
                  {"cls.seq_relationship", kBias, both ? 2 : 0, is.hidden}});
}

void bert(ConfigFields& fields, ArchitectureBuilder& out) {
    describe_bert(fields, out,
                  {"bert.", "cls.predictions.", "cls.predictions.transform.dense",
                   "cls.predictions.transform.LayerNorm", 30522});
}

void roberta(ConfigFields& fields, ArchitectureBuilder& out) {
    describe_bert(fields, out,
                  {"roberta.", "lm_head.", "lm_head.dense", "lm_head.layer_norm", 50265});
}

struct T5Shape : Shape {
    std::uint64_t buckets = 0;
    bool gated = false;
};

void describe_t5_stack(ArchitectureBuilder& out, const T5Shape& is, std::uint64_t first,
                       std::uint64_t count, bool decoder) {
    const Layers all = layers_from(first, count);
    const std::string stack = decoder ? "decoder." : "encoder.";
    const std::string block = stack + "block.*.layer.";
    const Exact width = Exact(is.heads) * is.head_dim;
    const auto attention = [&](const std::string& layer, const std::string& name) {
        out.each(all, block + layer,
                 {{name + ".q", kWeight, width, is.hidden, kByHeads},
                  {name + ".k", kWeight, width, is.hidden, kByHeads},
                  {name + ".v", kWeight, width, is.hidden, kByHeads},
                  {name + ".o", kWeight, is.hidden, width, kByHeadInputs},
                  {"layer_norm", kWeight, is.hidden}});
    };
    attention("0.", "SelfAttention");
    if (decoder) {
        attention("1.", "EncDecAttention");
    }
    // The first block of a stack has the table of positions of all.
    out.each(layers_from(first, 1), stack + "block.0.layer.0.SelfAttention.",
             {{"relative_attention_bias", kWeight, is.buckets, is.heads}});
    const std::uint64_t gate = is.gated ? is.inner : 0;
    out.each(all, block + (decoder ? "2." : "1."),
             {{"DenseReluDense.wi_0", kWeight, gate, is.hidden, kByInner},
              {"DenseReluDense.wi_1", kWeight, gate, is.hidden, kByInner},
              {"DenseReluDense.wi", kWeight, is.inner - gate, is.hidden, kByInner},
              {"DenseReluDense.wo", kWeight, is.hidden, is.inner, kByInnerInputs},
              {"layer_norm", kWeight, is.hidden}});
    out.each(layers_from(first + count - 1, 1), stack, {{"final_layer_norm", kWeight, is.hidden}});
}

void t5(ConfigFields& fields, ArchitectureBuilder& out) {
    T5Shape is;
    is.vocabulary = fields.dimension("vocab_size", 32128);
    is.hidden = fields.dimension("d_model", 512);
    is.head_dim = fields.dimension("d_kv", 64);
    is.inner = fields.dimension("d_ff", 2048);
    is.heads = fields.dimension("num_heads", 8);
    is.buckets = fields.dimension("relative_attention_num_buckets", 32);
    is.gated = fields.text("feed_forward_proj", "relu").starts_with("gated-");
    const std::uint64_t encoder = fields.dimension("num_layers", 6, 1, kLayersMax / 2);
    // The classes without a decoder; their configs have num_decoder_layers all the same.
    const std::string name =
        architecture_named(fields, "a model with a head for tokens was assumed");
    const bool alone = name == "T5EncoderModel" || name == "T5ForTokenClassification";
    const std::uint64_t decoder = alone ? 0 : fields.derived("num_decoder_layers", encoder);
    if (decoder > kLayersMax / 2) {
        fields.refuse(
            fmt::format("num_decoder_layers is {}; expected at most {}", decoder, kLayersMax / 2));
        return;
    }
    is.layers = encoder + decoder;
    out.set_shape(is);
    out.first("shared.", {{"weight", kNamed, is.vocabulary, is.hidden, kByVocabulary}});
    describe_t5_stack(out, is, 0, encoder, false);
    if (alone) {
        return;
    }
    describe_t5_stack(out, is, encoder, decoder, true);
    if (has_token_head(fields) && !is_tied(fields, true)) {
        out.last("lm_head.", {{"weight", kNamed, is.vocabulary, is.hidden, kByVocabulary}});
        fields.assume(
            "tie_word_embeddings is false; the head was counted by itself, as the published "
            "files of T5 1.1 have it (transformers 5 builds it tied)");
    }
}

constexpr std::array<Architecture, 3> kKnown{{{"bert", bert}, {"roberta", roberta}, {"t5", t5}}};

}  // namespace

std::span<const Architecture> encoders() {
    return kKnown;
}

void describe_siglip(ConfigFields& vision, ArchitectureBuilder& out, std::uint64_t hidden) {
    vision.set_type("siglip_vision_model");
    const std::uint64_t width = vision.dimension("hidden_size", 768);
    const std::uint64_t inner = vision.dimension("intermediate_size", 3072);
    const std::uint64_t layers = vision.dimension("num_hidden_layers", 12, 1, kLayersMax);
    const std::uint64_t channels = vision.dimension("num_channels", 3);
    const std::uint64_t image = vision.dimension("image_size", 224, 1, 1U << 20U);
    const std::uint64_t patch = vision.dimension("patch_size", 16, 1, 1U << 20U);
    const std::uint64_t side = image / patch;
    const bool head = vision.flag("vision_use_head", true);
    // The tower is taken to be on the first pipeline stage, before the layers of the language
    // model: so its layers are one tensor.
    const std::uint64_t each = width * layers;
    const std::uint64_t pooled = head ? width : 0;
    const std::uint64_t pooled_inner = head ? inner : 0;
    out.first("model.vision_tower.vision_model.",
              {{"embeddings.patch_embedding", kBias, width, Exact(channels) * patch * patch},
               {"embeddings.position_embedding", kWeight, side * side, width},
               {"encoder.layers.*.self_attn.q_proj", kBias, each, width},
               {"encoder.layers.*.self_attn.k_proj", kBias, each, width},
               {"encoder.layers.*.self_attn.v_proj", kBias, each, width},
               {"encoder.layers.*.self_attn.out_proj", kBias, each, width},
               {"encoder.layers.*.mlp.fc1", kBias, inner * layers, width},
               {"encoder.layers.*.mlp.fc2", kBias, each, inner},
               {"encoder.layers.*.layer_norm1", kBias, each},
               {"encoder.layers.*.layer_norm2", kBias, each},
               {"post_layernorm", kBias, width},
               {"head.probe", kNamed, pooled},
               {"head.attention.in_proj", kBias, 3 * pooled, width},
               {"head.attention.out_proj", kBias, pooled, width},
               {"head.layernorm", kBias, pooled},
               {"head.mlp.fc1", kBias, pooled_inner, width},
               {"head.mlp.fc2", kBias, pooled, inner}});
    out.first("model.multi_modal_projector.",
              {{"mm_input_projection_weight", kNamed, width, hidden},
               {"mm_soft_emb_norm", kWeight, width}});
}

}  // namespace penstock::plan
