// SPDX-License-Identifier: Apache-2.0
// Encoders, and encoders with a decoder. Source of the shapes and of each default: transformers
// 5.23, models/bert, models/roberta, models/t5.
#include "plan/models/architecture.hpp"

#include <array>
#include <string>

namespace penstock::plan {

namespace {

constexpr TensorPlace kFirst = TensorPlace::kBegin;
constexpr TensorPlace kLast = TensorPlace::kEnd;

void norm_of(ArchitectureBuilder& out, TensorPlace place, const std::string& name,
             std::uint64_t width) {
    out.vector(place, name + ".weight", width);
    out.vector(place, name + ".bias", width);
}

void norm_of(ArchitectureBuilder& out, const Layers& layers, const std::string& name,
             std::uint64_t width) {
    out.vector(layers, name + ".weight", width);
    out.vector(layers, name + ".bias", width);
}

// The head of a BERT-like model, by the class that the file names.
struct BertHead {
    bool pooler = false;
    bool tokens = false;
    bool sentences = false;
};

BertHead bert_head(ConfigFields& fields) {
    const std::string named = architecture_named(fields, "a head for masked tokens was assumed");
    const std::string_view name = named;
    if (name.empty()) {
        return {false, true, false};
    }
    if (name.ends_with("ForPreTraining")) {
        return {true, true, true};
    }
    if (name.ends_with("Model") && !name.ends_with("LMHeadModel")) {
        return {true, false, false};
    }
    if (!name.ends_with("ForMaskedLM") && !name.ends_with("LMHeadModel") &&
        !name.ends_with("ForCausalLM")) {
        fields.assume("architectures names \"" + std::string(name.substr(0, 60)) +
                      "\"; a head for masked tokens was counted in place of its own head");
    }
    return {false, true, false};
}

struct BertNames {
    std::string model;
    std::string head;
    std::string dense;
    std::string norm;
    std::uint64_t vocabulary = 0;
};

void describe_bert(ConfigFields& fields, ArchitectureBuilder& out, const BertNames& names) {
    const std::uint64_t vocabulary = fields.dimension({"vocab_size"}, names.vocabulary);
    const std::uint64_t hidden = fields.dimension({"hidden_size"}, 768);
    const std::uint64_t layers = fields.dimension({"num_hidden_layers"}, 12, 1, kLayersMax);
    const std::uint64_t heads = fields.dimension({"num_attention_heads"}, 12);
    const std::uint64_t inner = fields.dimension({"intermediate_size"}, 3072);
    const std::uint64_t positions = fields.dimension({"max_position_embeddings"}, 512);
    const std::uint64_t types = fields.dimension({"type_vocab_size"}, 2);
    if (hidden % heads != 0) {
        fields.refuse("hidden_size is " + std::to_string(hidden) +
                      "; expected a multiple of num_attention_heads, " + std::to_string(heads));
    }
    if (fields.flag("add_cross_attention", false)) {
        fields.refuse("add_cross_attention is true; expected a model without another encoder");
    }
    const BertHead head = bert_head(fields);
    const Layers all = layers_from(0, layers);
    const std::string embeddings = names.model + "embeddings.";
    const std::string layer = names.model + "encoder.layer.*.";
    const Division rows{TensorSplit::kVocabulary, vocabulary};
    const Division by_heads{TensorSplit::kHeads, heads};
    const Division by_inner{TensorSplit::kInner, inner};
    out.set_layers(layers);
    out.matrix(kFirst, embeddings + "word_embeddings.weight", vocabulary, hidden, rows);
    out.matrix(kFirst, embeddings + "position_embeddings.weight", positions, hidden);
    out.matrix(kFirst, embeddings + "token_type_embeddings.weight", types, hidden);
    norm_of(out, kFirst, embeddings + "LayerNorm", hidden);
    for (const char* name : {"query", "key", "value"}) {
        out.linear(all, layer + "attention.self." + name, hidden, hidden, true, by_heads);
    }
    out.linear(all, layer + "attention.output.dense", hidden, hidden, true, by_heads, true);
    norm_of(out, all, layer + "attention.output.LayerNorm", hidden);
    out.linear(all, layer + "intermediate.dense", inner, hidden, true, by_inner);
    out.linear(all, layer + "output.dense", hidden, inner, true, by_inner, true);
    norm_of(out, all, layer + "output.LayerNorm", hidden);
    if (head.pooler) {
        out.matrix(kLast, names.model + "pooler.dense.weight", hidden, hidden);
        out.vector(kLast, names.model + "pooler.dense.bias", hidden);
    }
    if (head.tokens) {
        out.matrix(kLast, names.dense + ".weight", hidden, hidden);
        out.vector(kLast, names.dense + ".bias", hidden);
        norm_of(out, kLast, names.norm, hidden);
        if (!is_tied(fields, true)) {
            out.matrix(kLast, names.head + "decoder.weight", vocabulary, hidden, rows);
            out.vector(kLast, names.head + "decoder.bias", vocabulary, rows);
        }
        out.vector(kLast, names.head + "bias", vocabulary, rows);
    }
    if (head.sentences) {
        out.matrix(kLast, "cls.seq_relationship.weight", 2, hidden);
        out.vector(kLast, "cls.seq_relationship.bias", 2);
    }
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

struct T5Shape {
    std::uint64_t hidden = 0;
    std::uint64_t heads = 0;
    std::uint64_t head_dim = 0;
    std::uint64_t inner = 0;
    std::uint64_t buckets = 0;
    bool gated = false;
};

void describe_t5_attention(ArchitectureBuilder& out, const T5Shape& shape, const Layers& layers,
                           const std::string& name) {
    const Exact width = Exact(shape.heads) * shape.head_dim;
    const Division by{TensorSplit::kHeads, shape.heads};
    for (const char* part : {"q", "k", "v"}) {
        out.matrix(layers, name + part + ".weight", width, shape.hidden, by);
    }
    out.matrix(layers, name + "o.weight", shape.hidden, width,
               {TensorSplit::kHeads, shape.heads, true});
}

void describe_t5_stack(ArchitectureBuilder& out, const T5Shape& shape, std::uint64_t first,
                       std::uint64_t count, bool decoder) {
    const Layers all = layers_from(first, count);
    const std::string stack = decoder ? "decoder." : "encoder.";
    const std::string block = stack + "block.*.layer.";
    const std::string last = decoder ? "2." : "1.";
    const Division by{TensorSplit::kInner, shape.inner};
    describe_t5_attention(out, shape, all, block + "0.SelfAttention.");
    out.vector(all, block + "0.layer_norm.weight", shape.hidden);
    if (decoder) {
        describe_t5_attention(out, shape, all, block + "1.EncDecAttention.");
        out.vector(all, block + "1.layer_norm.weight", shape.hidden);
    }
    // The first block of a stack has the table of positions of all.
    out.matrix(layers_from(first, 1),
               stack + "block.0.layer.0.SelfAttention.relative_attention_bias.weight",
               shape.buckets, shape.heads);
    for (const char* name : {"wi_0", "wi_1"}) {
        if (shape.gated) {
            out.matrix(all, block + last + "DenseReluDense." + name + ".weight", shape.inner,
                       shape.hidden, by);
        }
    }
    if (!shape.gated) {
        out.matrix(all, block + last + "DenseReluDense.wi.weight", shape.inner, shape.hidden, by);
    }
    out.matrix(all, block + last + "DenseReluDense.wo.weight", shape.hidden, shape.inner,
               {TensorSplit::kInner, shape.inner, true});
    out.vector(all, block + last + "layer_norm.weight", shape.hidden);
    out.vector(layers_from(first + count - 1, 1), stack + "final_layer_norm.weight", shape.hidden);
}

// The classes without a decoder; their configs have num_decoder_layers all the same.
bool is_encoder_alone(ConfigFields& fields) {
    const std::string name =
        architecture_named(fields, "a model with a head for tokens was assumed");
    return name == "T5EncoderModel" || name == "T5ForTokenClassification";
}

void t5(ConfigFields& fields, ArchitectureBuilder& out) {
    const std::uint64_t vocabulary = fields.dimension({"vocab_size"}, 32128);
    T5Shape shape;
    shape.hidden = fields.dimension({"d_model"}, 512);
    shape.head_dim = fields.dimension({"d_kv"}, 64);
    shape.inner = fields.dimension({"d_ff"}, 2048);
    shape.heads = fields.dimension({"num_heads"}, 8);
    shape.buckets = fields.dimension({"relative_attention_num_buckets"}, 32);
    shape.gated = fields.text("feed_forward_proj", "relu").starts_with("gated-");
    const std::uint64_t encoder = fields.dimension({"num_layers"}, 6, 1, kLayersMax / 2);
    const bool alone = is_encoder_alone(fields);
    const std::uint64_t decoder = alone ? 0 : fields.derived({"num_decoder_layers"}, encoder);
    if (decoder > kLayersMax / 2) {
        fields.refuse("num_decoder_layers is " + std::to_string(decoder) + "; expected at most " +
                      std::to_string(kLayersMax / 2));
        return;
    }
    const Division rows{TensorSplit::kVocabulary, vocabulary};
    out.set_layers(encoder + decoder);
    out.matrix(kFirst, "shared.weight", vocabulary, shape.hidden, rows);
    describe_t5_stack(out, shape, 0, encoder, false);
    if (alone) {
        return;
    }
    describe_t5_stack(out, shape, encoder, decoder, true);
    if (has_token_head(fields) && !is_tied(fields, true)) {
        out.matrix(kLast, "lm_head.weight", vocabulary, shape.hidden, rows);
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

}  // namespace penstock::plan
