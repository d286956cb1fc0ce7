// SPDX-License-Identifier: Apache-2.0
// Models by name. DLIO's formula (dlio_benchmark, checkpointing/base_checkpointing.py,
// get_num_parameters) differs from that of transformers in two ways: q and o are hidden x hidden
// whatever the heads are, and the width of a head is rounded down.
#include "base/raise.hpp"
#include "base/text/near.hpp"
#include "plan/amount.hpp"
#include "plan/models/architecture.hpp"
#include "plan/models/model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

namespace penstock::plan {

namespace {

struct Llama {
    const char* name;
    Shape shape;
    const char* source;
};

constexpr const char* kDlio =
    "DLIO's formula with the numbers of its own YAML (dlio_benchmark, configs/workload)";
constexpr const char* kDlio70b =
    "DLIO's formula with the numbers of its own YAML: 128 heads, where the published model has 64; "
    "llama-3-70b has the true count";

constexpr std::array<Llama, 5> kDlioLlamas{
    {{"dlio-llama-7b", {32000, 4096, 11008, 32, 32, 32}, kDlio},
     {"dlio-llama-8b", {128256, 4096, 14336, 32, 32, 8}, kDlio},
     {"dlio-llama-70b", {128256, 8192, 28672, 80, 128, 8}, kDlio70b},
     {"dlio-llama-405b", {128256, 16384, 53248, 126, 128, 8}, kDlio},
     {"dlio-llama-1t", {128256, 25872, 98304, 128, 192, 32}, kDlio}}};

constexpr const char* kPublished =
    "the config.json that Meta published, counted as transformers builds it";
constexpr std::array<Llama, 4> kLlamas{
    {{"llama-2-7b", {32000, 4096, 11008, 32, 32, 32}, kPublished},
     {"llama-3-8b", {128256, 4096, 14336, 32, 32, 8}, kPublished},
     {"llama-3-70b", {128256, 8192, 28672, 80, 64, 8}, kPublished},
     {"llama-3-405b", {128256, 16384, 53248, 126, 128, 8}, kPublished}}};

constexpr const char* kSnia = "the name's own number, as SNIA's table has it";
constexpr std::array<std::string_view, 10> kSniaSizes{"3b",   "7b",   "13b",  "33b",  "70b",
                                                      "140b", "175b", "405b", "530b", "1t"};

ModelParameters dlio_llama(const Llama& known) {
    const Shape& is = known.shape;
    const std::uint64_t key = is.key_heads * (is.hidden / is.heads);
    ArchitectureBuilder out;
    out.set_shape(is);
    out.cache(key + key);
    // DLIO divides neither the embedding nor the head over the ranks of tensor parallelism.
    out.first("", {{"embedding", kNamed, is.vocabulary, is.hidden}});
    out.each("layers.*.", {{"input_norm", kNamed, is.hidden},
                           {"q", kNamed, is.hidden, is.hidden, kByHeads},
                           {"k", kNamed, key, is.hidden, kByKeyHeads},
                           {"v", kNamed, key, is.hidden, kByKeyHeads},
                           {"dense", kNamed, is.hidden, is.hidden, kByHeadInputs},
                           {"layer_norm", kNamed, is.hidden},
                           {"mlp_h_to_4h", kNamed, 2 * is.inner, is.hidden, kByInner},
                           {"mlp_4h_to_h", kNamed, is.hidden, is.inner, kByInnerInputs}});
    out.last("", {{"weight", kNamed, is.hidden}, {"lm_head", kNamed, is.vocabulary, is.hidden}});
    ModelParameters model = base::unwrap(out.finish(known.name));
    model.source = known.source;
    return model;
}

ModelParameters llama_model(const Llama& known) {
    const Shape& shape = known.shape;
    ModelParameters model = read_model(fmt::format(
        R"({{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": {},
             "num_hidden_layers": {}, "intermediate_size": {}, "vocab_size": {},
             "num_attention_heads": {}, "num_key_value_heads": {}, "tie_word_embeddings": false}})",
        shape.hidden, shape.layers, shape.inner, shape.vocabulary, shape.heads, shape.key_heads));
    model.name = known.name;
    model.source = known.source;
    return model;
}

// "175b" is 175e9: the letter of a number of parameters, in either case.
std::optional<std::uint64_t> counted_name(std::string_view name) {
    std::string number(name);
    if (number.empty() || std::isdigit(static_cast<unsigned char>(number.front())) == 0) {
        return std::nullopt;
    }
    std::transform(number.begin(), number.end(), number.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    const double value = parse_amount({}, "model", number, Amount::kParameters);
    check_amount({}, "model", value, Amount::kParameters);
    return static_cast<std::uint64_t>(value);
}

ModelParameters of_count(std::string_view name, std::uint64_t parameters, const char* source) {
    ModelParameters model;
    model.name = name;
    model.parameters = parameters;
    model.source = source;
    return model;
}

}  // namespace

std::vector<std::string> model_names() {
    std::vector<std::string> out(kSniaSizes.begin(), kSniaSizes.end());
    for (const Llama& known : kDlioLlamas) {
        out.emplace_back(known.name);
    }
    for (const Llama& known : kLlamas) {
        out.emplace_back(known.name);
    }
    return out;
}

std::vector<std::string> snia_sizes() {
    return {kSniaSizes.begin(), kSniaSizes.end()};
}

ModelParameters model_named(std::string_view name) {
    for (const Llama& known : kDlioLlamas) {
        if (name == known.name) {
            return dlio_llama(known);
        }
    }
    for (const Llama& known : kLlamas) {
        if (name == known.name) {
            return llama_model(known);
        }
    }
    if (const auto count = counted_name(name)) {
        const bool snia = std::find(kSniaSizes.begin(), kSniaSizes.end(), name) != kSniaSizes.end();
        return of_count(name, *count, snia ? kSnia : "given");
    }
    const std::vector<std::string> all = model_names();
    const std::vector<std::string_view> known(all.begin(), all.end());
    const std::string_view near = base::nearest(name, known);
    refuse({}, fmt::format("model: got '{}'; {}", name.substr(0, 60),
                           near.empty() ? fmt::format("expected one of {}, a number of parameters "
                                                      "such as 13B, or a config.json",
                                                      fmt::join(known, ", "))
                                        : fmt::format("did you mean '{}'?", near)));
}

ModelParameters model_of(std::string_view verb, const std::string& name,
                         const std::string& config) {
    if (!name.empty() && !config.empty()) {
        refuse(verb, "got a model and a config.json; expected one of them");
    }
    if (name.empty() && config.empty()) {
        refuse(verb,
               fmt::format("expected a config.json, or --model with one of {}, or a number of "
                           "parameters such as 13B",
                           fmt::join(model_names(), ", ")));
    }
    return config.empty() ? model_named(name) : read_model(config);
}

}  // namespace penstock::plan
