// SPDX-License-Identifier: Apache-2.0
// Decoders with RMS norms, rotary positions and a gated feed-forward block, dense or of experts.
// They differ in biases, in norms, in how heads are counted, and in which layers have experts.
// Source of the shapes and of each default: transformers 5.23, models/<type>/modeling_<type>.py and
// configuration_<type>.py.
#include "plan/models/architecture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

namespace penstock::plan {

namespace {

// The marks of a model_type.
enum Has : std::uint32_t {
    kTied = 1U << 0U,         // the default of tie_word_embeddings
    kAsksBias = 1U << 1U,     // attention_bias decides on the biases of attention
    kQueryBias = 1U << 2U,    // of q, k and v; with kAsksBias the default of all
    kMlpBias = 1U << 3U,      // mlp_bias decides on those of the feed-forward block
    kHeadNorms = 1U << 4U,    // of q and k, a head wide
    kFourNorms = 1U << 5U,    // in a layer, which else has two
    kFused = 1U << 6U,        // q, k, v in one matrix; gate and up in one
    kLatent = 1U << 7U,       // attention without a head_dim
    kWindows = 1U << 8U,      // some layers have a sliding window
    kAsksWindows = 1U << 9U,  // only where use_sliding_window is true
};

// The layers that have a sliding window, where the file has no layer_types.
struct WindowRule {
    std::uint64_t window = 0;     // the default of sliding_window; 0: none
    std::uint64_t full_step = 0;  // each so many layers one without a window; 0: none
    std::uint64_t first = 0;      // the default of max_window_layers: windows from that layer on
};

// The widths are the defaults of transformers: vocabulary, hidden, inner, layers, heads, key heads
// (0: as many as heads), the width of a head (0: hidden / heads).
struct Kind {
    Shape shape;
    std::uint32_t has = 0;
    WindowRule windows = {};
};

constexpr Kind kLlama{{32000, 4096, 11008, 32, 32}, kAsksBias | kMlpBias};
constexpr Kind kMistral{{32000, 4096, 14336, 32, 32, 8}, kWindows, {4096}};
constexpr Kind kMixtral{{32000, 4096, 14336, 32, 32, 8}};
constexpr Kind kQwen2{
    {151936, 4096, 22016, 32, 32, 32}, kQueryBias | kWindows | kAsksWindows, {4096, 0, 28}};
constexpr Kind kQwen3{{151936, 4096, 22016, 32, 32, 32, 128},
                      kAsksBias | kHeadNorms | kWindows | kAsksWindows,
                      {4096, 0, 28}};
constexpr Kind kQwen3Moe{
    {151936, 2048, 6144, 24, 32, 4}, kAsksBias | kHeadNorms | kWindows | kAsksWindows, {4096}};
constexpr Kind kPhi3{{32064, 3072, 8192, 32, 32}, kFused | kWindows};
constexpr Kind kGemma{{256000, 3072, 24576, 28, 16, 16, 256}, kTied | kAsksBias};
constexpr Kind kGemma2{
    {256000, 2304, 9216, 26, 8, 4, 256}, kTied | kAsksBias | kFourNorms | kWindows, {4096, 2}};
constexpr Kind kGemma3{{262208, 2304, 9216, 26, 8, 4, 256},
                       kTied | kAsksBias | kHeadNorms | kFourNorms | kWindows,
                       {4096, 6}};
constexpr Kind kGptOss{
    {201088, 2880, 2880, 36, 64, 8, 64}, kAsksBias | kQueryBias | kWindows, {128, 2}};
constexpr Kind kDeepseekV3{{129280, 7168, 18432, 61, 128, 128}, kLatent};

struct Model : Shape {
    std::uint32_t has = 0;
    bool head = true;       // a head of its own
    Parts query = kWeight;  // of q, k and v
    Parts output = kWeight;
    Parts gated = kWeight;       // of the feed-forward block
    std::uint64_t windowed = 0;  // layers whose attention sees the last `window` tokens
    std::uint64_t window = 0;
    std::string prefix = "model.";
};

void read_shape(ConfigFields& fields, Model& is, const Kind& kind) {
    const Shape& defaults = kind.shape;
    is.vocabulary = fields.dimension("vocab_size", defaults.vocabulary);
    is.hidden = fields.dimension("hidden_size", defaults.hidden);
    is.inner = fields.dimension("intermediate_size", defaults.inner);
    is.layers = fields.dimension("num_hidden_layers", defaults.layers, 1, kLayersMax);
    is.heads = fields.dimension("num_attention_heads", defaults.heads, 1, is.hidden);
    const bool null_means_all = defaults.key_heads == 0 || fields.is_null("num_key_value_heads");
    is.key_heads = null_means_all ? fields.derived("num_key_value_heads", is.heads)
                                  : fields.dimension("num_key_value_heads", defaults.key_heads);
    is.head_dim = std::max<std::uint64_t>(1, is.hidden / is.heads);
    if ((kind.has & kLatent) == 0) {
        is.head_dim = defaults.head_dim == 0 ? fields.derived("head_dim", is.head_dim)
                                             : fields.dimension("head_dim", defaults.head_dim);
    }
    if (is.key_heads > is.heads || is.heads % is.key_heads != 0) {
        fields.refuse(
            fmt::format("num_attention_heads is {} and num_key_value_heads is {}; "
                        "expected a multiple of it",
                        is.heads, is.key_heads));
    }
}

void read_windows(ConfigFields& fields, Model& is, const WindowRule& rule) {
    const bool used = (is.has & kAsksWindows) == 0 || fields.flag("use_sliding_window", false);
    const bool named = fields.find("sliding_window") != nullptr;
    if (!used || (!named && (fields.is_null("sliding_window") || rule.window == 0))) {
        return;
    }
    is.window = fields.derived("sliding_window", rule.window);
    if (const ConfigValue* types = fields.find("layer_types")) {
        if (types->texts.size() != is.layers) {
            fields.refuse(fmt::format(
                "layer_types has {} names; expected one for each of num_hidden_layers, {}",
                types->texts.size(), is.layers));
        }
        is.windowed = static_cast<std::uint64_t>(
            std::count(types->texts.begin(), types->texts.end(), "sliding_attention"));
        return;
    }
    const std::uint64_t first =
        rule.first == 0 ? 0
                        : std::min(fields.derived("max_window_layers", rule.first, 0), is.layers);
    const std::uint64_t step =
        rule.full_step == 0 ? 0 : fields.derived("sliding_window_pattern", rule.full_step, 0);
    is.windowed = is.layers - first - (step == 0 ? 0 : (is.layers - first) / step);
}

// `outer`: the file itself, which says what head the model has.
Model read(ConfigFields& fields, const Kind& kind, ConfigFields& outer) {
    Model is;
    is.has = kind.has;
    read_shape(fields, is, kind);
    if ((is.has & kWindows) != 0) {
        read_windows(fields, is, kind.windows);
    }
    is.head = has_token_head(outer) && !is_tied(outer, (is.has & kTied) != 0);
    is.query = (is.has & kQueryBias) != 0 ? kBias : kWeight;
    if ((is.has & kAsksBias) != 0) {
        is.query = is.output = fields.flag("attention_bias", is.query == kBias) ? kBias : kWeight;
    }
    if ((is.has & kMlpBias) != 0 && fields.flag("mlp_bias", false)) {
        is.gated = kBias;
    }
    return is;
}

void describe_ends(ArchitectureBuilder& out, const Model& is) {
    out.set_shape(is);
    out.first(is.prefix, {{"embed_tokens", kWeight, is.vocabulary, is.hidden, kByVocabulary}});
    out.last(is.prefix, {{"norm", kWeight, is.hidden}});
    out.last("", {{"lm_head", kWeight, is.head ? is.vocabulary : 0, is.hidden, kByVocabulary}});
}

void describe_attention(ArchitectureBuilder& out, const Model& is) {
    const bool fused = (is.has & kFused) != 0;
    const Exact query = Exact(is.heads) * is.head_dim;
    const Exact key = Exact(is.key_heads) * is.head_dim;
    const Exact own_query = fused ? 0 : query;
    const Exact own_key = fused ? 0 : key;
    const std::uint64_t head = (is.has & kHeadNorms) != 0 ? is.head_dim : 0;
    const std::uint64_t fed = (is.has & kFourNorms) != 0 ? is.hidden : 0;
    out.cache(key + key, is.windowed, is.window);
    out.each(
        is.prefix + "layers.*.",
        {{"self_attn.qkv_proj", is.query, fused ? query + key + key : 0, is.hidden, kByKeyHeads},
         {"self_attn.q_proj", is.query, own_query, is.hidden, kByHeads},
         {"self_attn.k_proj", is.query, own_key, is.hidden, kByKeyHeads},
         {"self_attn.v_proj", is.query, own_key, is.hidden, kByKeyHeads},
         {"self_attn.o_proj", is.output, is.hidden, query, kByHeadInputs},
         {"self_attn.q_norm", kWeight, head},
         {"self_attn.k_norm", kWeight, head},
         {"input_layernorm", kWeight, is.hidden},
         {"post_attention_layernorm", kWeight, is.hidden},
         {"pre_feedforward_layernorm", kWeight, fed},
         {"post_feedforward_layernorm", kWeight, fed}});
}

void describe_gated(ArchitectureBuilder& out, const Model& is, const Layers& layers,
                    const Exact& inner, const std::string& name = "mlp.") {
    const bool fused = (is.has & kFused) != 0;
    const Exact own = fused ? 0 : inner;
    out.set_inner(inner.value());
    out.each(layers, is.prefix + "layers.*." + name,
             {{"gate_up_proj", is.gated, fused ? inner + inner : 0, is.hidden, kByInner},
              {"gate_proj", is.gated, own, is.hidden, kByInner},
              {"up_proj", is.gated, own, is.hidden, kByInner},
              {"down_proj", is.gated, is.hidden, inner, kByInnerInputs}});
}

void describe_experts(ArchitectureBuilder& out, const Model& is, const Layers& layers,
                      std::uint64_t inner, std::uint64_t experts) {
    out.set_inner(inner);
    out.each(layers, is.prefix + "layers.*.mlp.",
             {{"gate", kWeight, experts, is.hidden},
              {"experts.*.gate_proj", kWeight, inner, is.hidden, kByInner, experts},
              {"experts.*.up_proj", kWeight, inner, is.hidden, kByInner, experts},
              {"experts.*.down_proj", kWeight, is.hidden, inner, kByInnerInputs, experts}});
}

void describe_dense(ArchitectureBuilder& out, const Model& is) {
    describe_ends(out, is);
    describe_attention(out, is);
    describe_gated(out, is, layers_from(0, is.layers), is.inner);
}

template <const Kind& kKind>
void dense(ConfigFields& fields, ArchitectureBuilder& out) {
    describe_dense(out, read(fields, kKind, fields));
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
    Model is = read(*text, kGemma3, fields);
    is.prefix = "model.language_model.";
    describe_dense(out, is);
    describe_siglip(*vision, out, is.hidden);
    fields.absorb(*text);
    fields.absorb(*vision);
}

void mixtral(ConfigFields& fields, ArchitectureBuilder& out) {
    Model is = read(fields, kMixtral, fields);
    read_windows(fields, is, {});
    const std::uint64_t experts = fields.dimension("num_local_experts|num_experts", 8);
    describe_ends(out, is);
    describe_attention(out, is);
    describe_experts(out, is, layers_from(0, is.layers), is.inner, experts);
}

void qwen3_moe(ConfigFields& fields, ArchitectureBuilder& out) {
    const Model is = read(fields, kQwen3Moe, fields);
    const std::uint64_t experts =
        fields.dimension("num_experts|num_local_experts|n_routed_experts", 128, 0);
    const std::uint64_t inner = fields.dimension("moe_intermediate_size", 768);
    const std::uint64_t step = fields.derived("decoder_sparse_step", 1);
    std::vector<std::uint64_t> dense = fields.whole_numbers("mlp_only_layers");
    std::sort(dense.begin(), dense.end());
    Layers with_experts;
    Layers without;
    for (std::uint32_t i = 0; i < is.layers; ++i) {
        const bool sparse = !std::binary_search(dense.begin(), dense.end(), i) && experts > 0 &&
                            (i + 1) % step == 0;
        (sparse ? with_experts : without).push_back(i);
    }
    describe_ends(out, is);
    describe_attention(out, is);
    describe_gated(out, is, without, is.inner);
    describe_experts(out, is, with_experts, inner, experts);
}

void gpt_oss(ConfigFields& fields, ArchitectureBuilder& out) {
    const Model is = read(fields, kGptOss, fields);
    const std::uint64_t experts = fields.dimension("num_local_experts|num_experts", 128);
    const std::uint64_t two = 2 * is.inner;
    describe_ends(out, is);
    describe_attention(out, is);
    out.each("model.layers.*.",
             {{"self_attn.sinks", kNamed, is.heads, {}, kByHeads},
              {"mlp.router", kBias, experts, is.hidden},
              {"mlp.experts.*.gate_up_proj", kNamed, is.hidden, two, kByInnerInputs, experts},
              {"mlp.experts.*.gate_up_proj_bias", kNamed, two, {}, kByInner, experts},
              {"mlp.experts.*.down_proj", kNamed, is.inner, is.hidden, kByInner, experts},
              {"mlp.experts.*.down_proj_bias", kNamed, is.hidden, {}, {}, experts}});
}

// Multi-head latent attention: queries, keys and values pass through narrow matrices, which every
// rank of tensor parallelism has.
void deepseek_v3(ConfigFields& fields, ArchitectureBuilder& out) {
    const Model is = read(fields, kDeepseekV3, fields);
    const std::uint64_t experts = fields.dimension("n_routed_experts|num_local_experts", 256);
    const std::uint64_t shared = fields.dimension("n_shared_experts", 1);
    const std::uint64_t inner = fields.dimension("moe_intermediate_size", 2048);
    const std::uint64_t dense =
        std::min(fields.dimension("first_k_dense_replace", 3, 0), is.layers);
    const std::uint64_t key_rank = fields.dimension("kv_lora_rank", 512);
    const std::uint64_t rotary = fields.dimension("qk_rope_head_dim", 64);
    const std::uint64_t plain = fields.dimension("qk_nope_head_dim", 128);
    const std::uint64_t value = fields.dimension("v_head_dim", 128);
    const bool whole = fields.is_null("q_lora_rank");
    const std::uint64_t query_rank = whole ? 0 : fields.dimension("q_lora_rank", 1536);
    const Parts bias = fields.flag("attention_bias", false) ? kBias : kWeight;
    const Exact heads = is.heads;
    const Exact queries = heads * (plain + rotary);
    describe_ends(out, is);
    out.each("model.layers.*.",
             {{"self_attn.q_proj", kWeight, whole ? queries : 0, is.hidden, kByHeads},
              {"self_attn.q_a_proj", bias, query_rank, is.hidden},
              {"self_attn.q_a_layernorm", kWeight, query_rank},
              {"self_attn.q_b_proj", kWeight, queries, query_rank, kByHeads},
              {"self_attn.kv_a_proj_with_mqa", bias, key_rank + rotary, is.hidden},
              {"self_attn.kv_a_layernorm", kWeight, key_rank},
              {"self_attn.kv_b_proj", kWeight, heads * (plain + value), key_rank, kByHeads},
              {"self_attn.o_proj", bias, is.hidden, heads * value, kByHeadInputs},
              {"input_layernorm", kWeight, is.hidden},
              {"post_attention_layernorm", kWeight, is.hidden}});
    // DeepSeek-V3's report (arXiv 2412.19437, section 2.1.1): the compressed vector and the rotary
    // key are what is kept.
    out.cache(key_rank + rotary);
    const Layers routed = layers_from(dense, is.layers - dense);
    describe_gated(out, is, layers_from(0, dense), is.inner);
    describe_experts(out, is, routed, inner, experts);
    describe_gated(out, is, routed, Exact(inner) * shared, "mlp.shared_experts.");
    fields.assume(
        "the layers that predict further tokens (num_nextn_predict_layers) are not counted, "
        "as transformers leaves them out");
}

constexpr std::array<Architecture, 13> kKnown{{{"llama", dense<kLlama>},
                                               {"mistral", dense<kMistral>},
                                               {"qwen2", dense<kQwen2>},
                                               {"qwen3", dense<kQwen3>},
                                               {"qwen3_moe", qwen3_moe},
                                               {"phi3", dense<kPhi3>},
                                               {"gemma", dense<kGemma>},
                                               {"gemma2", dense<kGemma2>},
                                               {"gemma3_text", dense<kGemma3>},
                                               {"gemma3", gemma3},
                                               {"mixtral", mixtral},
                                               {"gpt_oss", gpt_oss},
                                               {"deepseek_v3", deepseek_v3}}};

}  // namespace

std::span<const Architecture> gated_decoders() {
    return kKnown;
}

}  // namespace penstock::plan
