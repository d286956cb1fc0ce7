// SPDX-License-Identifier: Apache-2.0
// Decoders with RMS norms, rotary positions and a gated feed-forward block, dense or of experts.
// They differ in biases, in norms, in how heads are counted, and in which layers have experts.
// Source of the shapes and of each default: transformers 5.23, models/<type>/modeling_<type>.py and
// configuration_<type>.py.
#include "plan/models/architecture.hpp"
#include "plan/models/siglip.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace penstock::plan {

namespace {

struct Defaults {
    std::uint64_t vocabulary;
    std::uint64_t hidden;
    std::uint64_t inner;
    std::uint64_t layers;
    std::uint64_t heads;
    std::uint64_t key_heads;  // 0: as many as heads
    std::uint64_t head_dim;   // 0: hidden / heads
};

struct Dimensions {
    std::uint64_t vocabulary = 0;
    std::uint64_t hidden = 0;
    std::uint64_t inner = 0;
    std::uint64_t layers = 0;
    std::uint64_t heads = 0;
    std::uint64_t key_heads = 0;
    std::uint64_t head_dim = 0;
    bool has_head = true;
    bool tied = false;
    std::uint64_t windowed = 0;  // layers whose attention sees the last `window` tokens
    std::uint64_t window = 0;
};

// The layers of a model that have a sliding window, where its file has no layer_types.
struct WindowRule {
    std::uint64_t window = 0;     // the default of sliding_window; 0: none
    std::uint64_t full_step = 0;  // each so many layers one without a window; 0: none
    bool asks = false;            // only where use_sliding_window is true
    std::uint64_t first = 0;      // the default of max_window_layers: windows from that layer on
};

struct Traits {
    bool query_bias = false;   // of q, k and v
    bool output_bias = false;  // of o
    bool inner_bias = false;
    bool head_norms = false;  // of q and k, a head wide
    bool fused = false;       // q, k, v in one matrix; gate and up in one
    int norms = 2;            // in a layer
};

Dimensions read_dimensions(ConfigFields& fields, const Defaults& defaults,
                           bool own_head_dim = true) {
    Dimensions out;
    out.vocabulary = fields.dimension({"vocab_size"}, defaults.vocabulary);
    out.hidden = fields.dimension({"hidden_size"}, defaults.hidden);
    out.inner = fields.dimension({"intermediate_size"}, defaults.inner);
    out.layers = fields.dimension({"num_hidden_layers"}, defaults.layers, 1, kLayersMax);
    out.heads = fields.dimension({"num_attention_heads"}, defaults.heads, 1, out.hidden);
    const bool null_means_all = defaults.key_heads == 0 || fields.is_null("num_key_value_heads");
    out.key_heads = null_means_all ? fields.derived({"num_key_value_heads"}, out.heads)
                                   : fields.dimension({"num_key_value_heads"}, defaults.key_heads);
    const std::uint64_t width = std::max<std::uint64_t>(1, out.hidden / out.heads);
    out.head_dim = !own_head_dim            ? width
                   : defaults.head_dim == 0 ? fields.derived({"head_dim"}, width)
                                            : fields.dimension({"head_dim"}, defaults.head_dim);
    if (out.key_heads > out.heads || out.heads % out.key_heads != 0) {
        fields.refuse("num_attention_heads is " + std::to_string(out.heads) +
                      " and num_key_value_heads is " + std::to_string(out.key_heads) +
                      "; expected a multiple of it");
    }
    return out;
}

void read_windows(ConfigFields& fields, Dimensions& dims, const WindowRule& rule) {
    const bool used = !rule.asks || fields.flag("use_sliding_window", false);
    const bool named = fields.find("sliding_window") != nullptr;
    if (!used || (!named && (fields.is_null("sliding_window") || rule.window == 0))) {
        return;
    }
    dims.window = fields.derived({"sliding_window"}, rule.window);
    if (const ConfigValue* types = fields.find("layer_types")) {
        if (types->texts.size() != dims.layers) {
            fields.refuse("layer_types has " + std::to_string(types->texts.size()) +
                          " names; expected one for each of num_hidden_layers, " +
                          std::to_string(dims.layers));
        }
        dims.windowed = static_cast<std::uint64_t>(
            std::count(types->texts.begin(), types->texts.end(), "sliding_attention"));
        return;
    }
    const std::uint64_t first =
        rule.first == 0
            ? 0
            : std::min(fields.derived({"max_window_layers"}, rule.first, 0), dims.layers);
    const std::uint64_t step =
        rule.full_step == 0 ? 0 : fields.derived({"sliding_window_pattern"}, rule.full_step, 0);
    dims.windowed = dims.layers - first - (step == 0 ? 0 : (dims.layers - first) / step);
}

void read_head(ConfigFields& fields, Dimensions& dims, bool tied) {
    dims.has_head = has_token_head(fields);
    dims.tied = !dims.has_head || is_tied(fields, tied);
}

void describe_ends(ArchitectureBuilder& out, const Dimensions& dims,
                   const std::string& prefix = "model.") {
    const Division rows{TensorSplit::kVocabulary, dims.vocabulary};
    out.matrix(TensorPlace::kBegin, prefix + "embed_tokens.weight", dims.vocabulary, dims.hidden,
               rows);
    out.vector(TensorPlace::kEnd, prefix + "norm.weight", dims.hidden);
    if (dims.has_head && !dims.tied) {
        out.matrix(TensorPlace::kEnd, "lm_head.weight", dims.vocabulary, dims.hidden, rows);
    }
}

void describe_attention(ArchitectureBuilder& out, const Dimensions& dims, const Traits& traits,
                        const Layers& all, const std::string& prefix) {
    const std::string attention = prefix + "layers.*.self_attn.";
    const Exact query = Exact(dims.heads) * dims.head_dim;
    const Exact key = Exact(dims.key_heads) * dims.head_dim;
    const Division by_heads{TensorSplit::kHeads, dims.heads};
    const Division by_key_heads{TensorSplit::kKeyHeads, dims.key_heads};
    if (traits.fused) {
        out.linear(all, attention + "qkv_proj", query + key + key, dims.hidden, traits.query_bias,
                   by_key_heads);
    } else {
        out.linear(all, attention + "q_proj", query, dims.hidden, traits.query_bias, by_heads);
        out.linear(all, attention + "k_proj", key, dims.hidden, traits.query_bias, by_key_heads);
        out.linear(all, attention + "v_proj", key, dims.hidden, traits.query_bias, by_key_heads);
    }
    out.linear(all, attention + "o_proj", dims.hidden, query, traits.output_bias, by_heads, true);
    if (traits.head_norms) {
        out.vector(all, attention + "q_norm.weight", dims.head_dim);
        out.vector(all, attention + "k_norm.weight", dims.head_dim);
    }
    out.cache(key + key, dims.layers, dims.windowed, dims.window);
    static constexpr std::array<const char*, 4> kNorms{
        "input_layernorm.weight", "post_attention_layernorm.weight",
        "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"};
    for (int i = 0; i < traits.norms; ++i) {
        out.vector(all, prefix + "layers.*." + kNorms.at(static_cast<std::size_t>(i)), dims.hidden);
    }
}

void describe_gated(ArchitectureBuilder& out, const std::string& name, const Layers& layers,
                    std::uint64_t hidden, const Exact& inner, const Traits& traits) {
    const Division by{TensorSplit::kInner, inner.value()};
    if (traits.fused) {
        out.linear(layers, name + "gate_up_proj", inner + inner, hidden, traits.inner_bias, by);
    } else {
        out.linear(layers, name + "gate_proj", inner, hidden, traits.inner_bias, by);
        out.linear(layers, name + "up_proj", inner, hidden, traits.inner_bias, by);
    }
    out.linear(layers, name + "down_proj", hidden, inner, traits.inner_bias, by, true);
}

void describe_experts(ArchitectureBuilder& out, const std::string& name, const Layers& layers,
                      std::uint64_t hidden, std::uint64_t inner, std::uint64_t experts) {
    const Division by{TensorSplit::kInner, inner};
    out.matrix(layers, name + "gate.weight", experts, hidden);
    out.matrix(layers, name + "experts.*.gate_proj.weight", inner, hidden, by, experts);
    out.matrix(layers, name + "experts.*.up_proj.weight", inner, hidden, by, experts);
    out.matrix(layers, name + "experts.*.down_proj.weight", hidden, inner,
               {TensorSplit::kInner, inner, true}, experts);
}

void describe_dense(ArchitectureBuilder& out, const Dimensions& dims, const Traits& traits,
                    const std::string& prefix = "model.") {
    const Layers all = layers_from(0, dims.layers);
    out.set_layers(dims.layers);
    describe_ends(out, dims, prefix);
    describe_attention(out, dims, traits, all, prefix);
    describe_gated(out, prefix + "layers.*.mlp.", all, dims.hidden, dims.inner, traits);
}

void llama(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {32000, 4096, 11008, 32, 32, 0, 0});
    read_head(fields, dims, false);
    Traits traits;
    traits.query_bias = traits.output_bias = fields.flag("attention_bias", false);
    traits.inner_bias = fields.flag("mlp_bias", false);
    describe_dense(out, dims, traits);
}

void mistral(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {32000, 4096, 14336, 32, 32, 8, 0});
    read_windows(fields, dims, {.window = 4096});
    read_head(fields, dims, false);
    describe_dense(out, dims, {});
}

void qwen2(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {151936, 4096, 22016, 32, 32, 32, 0});
    read_windows(fields, dims, {.window = 4096, .asks = true, .first = 28});
    read_head(fields, dims, false);
    Traits traits;
    traits.query_bias = true;
    describe_dense(out, dims, traits);
}

void qwen3(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {151936, 4096, 22016, 32, 32, 32, 128});
    read_windows(fields, dims, {.window = 4096, .asks = true, .first = 28});
    read_head(fields, dims, false);
    Traits traits;
    traits.query_bias = traits.output_bias = fields.flag("attention_bias", false);
    traits.head_norms = true;
    describe_dense(out, dims, traits);
}

void phi3(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {32064, 3072, 8192, 32, 32, 0, 0});
    read_windows(fields, dims, {});
    read_head(fields, dims, false);
    Traits traits;
    traits.fused = true;
    describe_dense(out, dims, traits);
}

void gemma(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {256000, 3072, 24576, 28, 16, 16, 256});
    read_head(fields, dims, true);
    Traits traits;
    traits.query_bias = traits.output_bias = fields.flag("attention_bias", false);
    describe_dense(out, dims, traits);
}

void gemma2(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {256000, 2304, 9216, 26, 8, 4, 256});
    read_windows(fields, dims, {.window = 4096, .full_step = 2});
    read_head(fields, dims, true);
    Traits traits;
    traits.query_bias = traits.output_bias = fields.flag("attention_bias", false);
    traits.norms = 4;
    describe_dense(out, dims, traits);
}

Dimensions read_gemma3_text(ConfigFields& fields) {
    Dimensions dims = read_dimensions(fields, {262208, 2304, 9216, 26, 8, 4, 256});
    read_windows(fields, dims, {.window = 4096, .full_step = 6});
    return dims;
}

void describe_gemma3_text(ConfigFields& fields, ArchitectureBuilder& out, const Dimensions& dims,
                          const std::string& prefix) {
    Traits traits;
    traits.query_bias = traits.output_bias = fields.flag("attention_bias", false);
    traits.head_norms = true;
    traits.norms = 4;
    describe_dense(out, dims, traits, prefix);
}

void gemma3_text(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_gemma3_text(fields);
    read_head(fields, dims, true);
    describe_gemma3_text(fields, out, dims, "model.");
}

void gemma3(ConfigFields& fields, ArchitectureBuilder& out) {
    auto text = fields.part("text_config");
    auto vision = fields.part("vision_config");
    if (!text || !vision) {
        fields.refuse(
            "model_type is gemma3 without text_config or vision_config; expected both "
            "(a model of text alone has model_type gemma3_text)");
        return;
    }
    Dimensions dims = read_gemma3_text(*text);
    read_head(fields, dims, true);  // the outer file says it
    describe_gemma3_text(*text, out, dims, "model.language_model.");
    describe_siglip(*vision, out, "model.vision_tower.vision_model.", dims.hidden);
    fields.absorb(*text);
    fields.absorb(*vision);
}

void mixtral(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {32000, 4096, 14336, 32, 32, 8, 0});
    read_head(fields, dims, false);
    read_windows(fields, dims, {});
    const std::uint64_t experts = fields.dimension({"num_local_experts", "num_experts"}, 8);
    const Layers all = layers_from(0, dims.layers);
    out.set_layers(dims.layers);
    describe_ends(out, dims);
    describe_attention(out, dims, {}, all, "model.");
    describe_experts(out, "model.layers.*.mlp.", all, dims.hidden, dims.inner, experts);
}

void qwen3_moe(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {151936, 2048, 6144, 24, 32, 4, 0});
    read_windows(fields, dims, {.window = 4096, .asks = true});
    read_head(fields, dims, false);
    const std::uint64_t experts =
        fields.dimension({"num_experts", "num_local_experts", "n_routed_experts"}, 128, 0);
    const std::uint64_t inner = fields.dimension({"moe_intermediate_size"}, 768);
    const std::uint64_t step = fields.derived({"decoder_sparse_step"}, 1);
    const std::vector<std::uint64_t> dense = fields.whole_numbers("mlp_only_layers");
    Traits traits;
    traits.query_bias = traits.output_bias = fields.flag("attention_bias", false);
    traits.head_norms = true;
    Layers with_experts;
    Layers without;
    const std::vector<std::uint64_t> sorted = [&] {
        std::vector<std::uint64_t> copy = dense;
        std::sort(copy.begin(), copy.end());
        return copy;
    }();
    for (std::uint32_t i = 0; i < dims.layers; ++i) {
        const bool sparse = !std::binary_search(sorted.begin(), sorted.end(), i) && experts > 0 &&
                            (i + 1) % step == 0;
        (sparse ? with_experts : without).push_back(i);
    }
    out.set_layers(dims.layers);
    describe_ends(out, dims);
    describe_attention(out, dims, traits, layers_from(0, dims.layers), "model.");
    describe_gated(out, "model.layers.*.mlp.", without, dims.hidden, dims.inner, {});
    describe_experts(out, "model.layers.*.mlp.", with_experts, dims.hidden, inner, experts);
}

void gpt_oss(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {201088, 2880, 2880, 36, 64, 8, 64});
    read_windows(fields, dims, {.window = 128, .full_step = 2});
    read_head(fields, dims, false);
    const std::uint64_t experts = fields.dimension({"num_local_experts", "num_experts"}, 128);
    Traits traits;
    traits.query_bias = traits.output_bias = fields.flag("attention_bias", true);
    const Layers all = layers_from(0, dims.layers);
    const std::string mlp = "model.layers.*.mlp.";
    const Division by{TensorSplit::kInner, dims.inner};
    out.set_layers(dims.layers);
    describe_ends(out, dims);
    describe_attention(out, dims, traits, all, "model.");
    out.vector(all, "model.layers.*.self_attn.sinks", dims.heads,
               {TensorSplit::kHeads, dims.heads});
    out.linear(all, mlp + "router", experts, dims.hidden, true);
    out.matrix(all, mlp + "experts.*.gate_up_proj", dims.hidden, Exact(2) * dims.inner,
               {TensorSplit::kInner, dims.inner, true}, experts);
    out.vector(all, mlp + "experts.*.gate_up_proj_bias", Exact(2) * dims.inner, by, experts);
    out.matrix(all, mlp + "experts.*.down_proj", dims.inner, dims.hidden, by, experts);
    out.vector(all, mlp + "experts.*.down_proj_bias", dims.hidden, {}, experts);
}

// Multi-head latent attention: queries, keys and values pass through narrow matrices, which every
// rank of tensor parallelism has.
void deepseek_v3(ConfigFields& fields, ArchitectureBuilder& out) {
    Dimensions dims = read_dimensions(fields, {129280, 7168, 18432, 61, 128, 128, 0}, false);
    read_head(fields, dims, false);
    const std::uint64_t experts = fields.dimension({"n_routed_experts", "num_local_experts"}, 256);
    const std::uint64_t shared = fields.dimension({"n_shared_experts"}, 1);
    const std::uint64_t inner = fields.dimension({"moe_intermediate_size"}, 2048);
    const std::uint64_t dense =
        std::min(fields.dimension({"first_k_dense_replace"}, 3, 0), dims.layers);
    const std::uint64_t key_rank = fields.dimension({"kv_lora_rank"}, 512);
    const std::uint64_t rotary = fields.dimension({"qk_rope_head_dim"}, 64);
    const std::uint64_t plain = fields.dimension({"qk_nope_head_dim"}, 128);
    const std::uint64_t value = fields.dimension({"v_head_dim"}, 128);
    const bool whole_queries = fields.is_null("q_lora_rank");
    const std::uint64_t query_rank = whole_queries ? 0 : fields.dimension({"q_lora_rank"}, 1536);
    const bool bias = fields.flag("attention_bias", false);
    const Layers all = layers_from(0, dims.layers);
    const std::string attention = "model.layers.*.self_attn.";
    const Division by_heads{TensorSplit::kHeads, dims.heads};
    const Exact queries = Exact(dims.heads) * (Exact(plain) + rotary);
    out.set_layers(dims.layers);
    describe_ends(out, dims);
    if (whole_queries) {
        out.linear(all, attention + "q_proj", queries, dims.hidden, false, by_heads);
    } else {
        out.linear(all, attention + "q_a_proj", query_rank, dims.hidden, bias);
        out.vector(all, attention + "q_a_layernorm.weight", query_rank);
        out.linear(all, attention + "q_b_proj", queries, query_rank, false, by_heads);
    }
    out.linear(all, attention + "kv_a_proj_with_mqa", Exact(key_rank) + rotary, dims.hidden, bias);
    out.vector(all, attention + "kv_a_layernorm.weight", key_rank);
    out.linear(all, attention + "kv_b_proj", Exact(dims.heads) * (Exact(plain) + value), key_rank,
               false, by_heads);
    out.linear(all, attention + "o_proj", dims.hidden, Exact(dims.heads) * value, bias, by_heads,
               true);
    out.vector(all, "model.layers.*.input_layernorm.weight", dims.hidden);
    out.vector(all, "model.layers.*.post_attention_layernorm.weight", dims.hidden);
    // DeepSeek-V3's report (arXiv 2412.19437, section 2.1.1): the compressed vector and the rotary
    // key are what is kept.
    out.cache(Exact(key_rank) + rotary, dims.layers);
    const Layers routed = layers_from(dense, dims.layers - dense);
    describe_gated(out, "model.layers.*.mlp.", layers_from(0, dense), dims.hidden, dims.inner, {});
    describe_experts(out, "model.layers.*.mlp.", routed, dims.hidden, inner, experts);
    describe_gated(out, "model.layers.*.mlp.shared_experts.", routed, dims.hidden,
                   Exact(inner) * shared, {});
    fields.assume(
        "the layers that predict further tokens (num_nextn_predict_layers) are not counted, "
        "as transformers leaves them out");
}

constexpr std::array<Architecture, 13> kKnown{{{"llama", llama},
                                               {"mistral", mistral},
                                               {"qwen2", qwen2},
                                               {"qwen3", qwen3},
                                               {"qwen3_moe", qwen3_moe},
                                               {"phi3", phi3},
                                               {"gemma", gemma},
                                               {"gemma2", gemma2},
                                               {"gemma3_text", gemma3_text},
                                               {"gemma3", gemma3},
                                               {"mixtral", mixtral},
                                               {"gpt_oss", gpt_oss},
                                               {"deepseek_v3", deepseek_v3}}};

}  // namespace

std::span<const Architecture> gated_decoders() {
    return kKnown;
}

}  // namespace penstock::plan
