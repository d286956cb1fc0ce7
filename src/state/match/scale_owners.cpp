// SPDX-License-Identifier: Apache-2.0
#include "state/match/scale_owners.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>

namespace penstock::state {

namespace {

// Each of these makes a name one of a scale, zero point or table, if its other words are of the
// second list. Digits at their ends do not count.
constexpr std::string_view kOfScales[] = {
    "absmax",    "amax",       "cb",    "centroids", "codebook", "codebooks", "codes",   "descale",
    "fakequant", "idx",        "lut",   "perm",      "qmap",     "qscale",    "qscales", "quant",
    "quantized", "quantizer",  "qzero", "qzeros",    "scale",    "scaleinv",  "scales",  "scaling",
    "scb",       "shift",      "sz",    "table",     "tables",   "wscale",    "wscales", "zero",
    "zeropoint", "zeropoints", "zeros", "zp",        "zps"};
constexpr std::string_view kNextToThem[] = {
    "act",    "activation", "activations", "bitsandbytes", "block",    "bnb",    "channel",
    "col",    "data",       "dynamic",     "eps",          "factor",   "fake",   "fp",
    "g",      "global",     "group",       "groups",       "history",  "in",     "input",
    "inputs", "int",        "inv",         "inverse",      "k",        "kv",     "map",
    "max",    "min",        "nested",      "nf",           "observer", "offset", "out",
    "output", "outputs",    "per",         "point",        "points",   "post",   "process",
    "q",      "row",        "smooth",      "state",        "static",   "tensor", "token",
    "v",      "val",        "w",           "weight",       "weights",  "x"};
// These are of scales only after the name of a tensor: "weight_shift", never "shift" alone.
constexpr std::string_view kOnlyOfATensor[] = {"codes", "idx", "perm", "shift", "table"};

bool has(std::span<const std::string_view> words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_separator(char c) {
    return c == '.' || c == '_' || c == ':' || c == '-' || c == '/';
}

// Lower case, without digits at the end. Empty: digits alone.
std::string plain(std::string_view word) {
    std::string out(word);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    while (!out.empty() && out.back() >= '0' && out.back() <= '9') {
        out.pop_back();
    }
    return out;
}

bool is_digits(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The words of a name from `begin` on. Nothing if a part between dots is a number: of a layer.
std::optional<std::vector<std::string>> words_of(std::string_view name, std::size_t begin) {
    std::vector<std::string> out;
    for (std::size_t i = begin; i <= name.size(); ++i) {
        if (i < name.size() && !is_separator(name[i])) {
            continue;
        }
        const std::string_view word = name.substr(begin, i - begin);
        const bool is_part =
            (begin == 0 || name[begin - 1] == '.') && (i == name.size() || name[i] == '.');
        if (!word.empty() && is_part && is_digits(word)) {
            return std::nullopt;
        }
        if (!word.empty()) {
            out.push_back(plain(word));
        }
        begin = i + 1;
    }
    return out;
}

struct Meaning {
    bool some = false;   ///< a word of scales
    bool all = true;     ///< all words are of scales, or next to them
    bool alone = false;  ///< a word of scales, and none that needs a tensor before it
};

std::optional<Meaning> meaning_of(std::string_view name, std::size_t begin) {
    const auto words = words_of(name, begin);
    if (!words) {
        return std::nullopt;
    }
    Meaning out;
    bool is_of_tensor = false;
    for (std::size_t i = 0; i < words->size(); ++i) {
        const std::string& word = (*words)[i];
        const bool is_of_scales = has(kOfScales, word);
        const bool is_group_index = word == "idx" && i > 0 && (*words)[i - 1] == "g";
        out.some = out.some || is_of_scales;
        out.all = out.all && (is_of_scales || word.empty() || has(kNextToThem, word));
        is_of_tensor = is_of_tensor || (has(kOnlyOfATensor, word) && !is_group_index);
    }
    out.alone = out.some && !is_of_tensor;
    return out;
}

std::string_view parent_of(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

bool ends_with_part(std::string_view name, std::string_view part) {
    return name.ends_with(part) &&
           (name.size() == part.size() || is_separator(name[name.size() - part.size() - 1]));
}

bool is_narrow(std::string_view dtype) {
    return dtype.starts_with("float8") || dtype.starts_with("float4") || dtype.starts_with("F6_") ||
           dtype.starts_with("F4");
}

struct Sign {
    std::string_view part;  ///< the end of a name
    std::string_view what;
};

constexpr Sign kSigns[] = {
    {"qzeros", "weights of GPTQ or AWQ"},
    {"qweight", "packed weights, as of GPTQ or AWQ"},
    {"quant_map", "4-bit weights of bitsandbytes"},
    {"absmax", "4-bit weights of bitsandbytes"},
    {"SCB", "int8 weights of bitsandbytes"},
    {"weight_packed", "packed weights of compressed-tensors"},
    {"weight_scale_2", "4-bit weights with two scales (NVFP4)"},
    {"W_q", "weights of HQQ"},
    {"codebooks", "weights of AQLM"},
    {"_packed_params", "quantized modules of torch"},
    {"weight._data", "weights of quanto"},
    {"weight._scale", "weights of quanto"},
    {"weight:qdata", "weights of torchao"},
    {"scaled_fp8", "float8 weights with scales"},
};

}  // namespace

bool is_converted(std::string_view from, std::string_view to) {
    constexpr std::string_view kFloats[] = {"float64", "float32", "float16", "bfloat16"};
    return from == to || (has(kFloats, from) && has(kFloats, to));
}

ScaleOwners::ScaleOwners(std::span<const DescribedTensor> tensors) {
    for (const auto& [name, dtype, shape] : tensors) {
        tensors_.emplace(name, name);
        const bool is_plain = is_converted(dtype, "float32");
        if (shape.size() < 2 && is_plain) {
            continue;  // a norm may have a `scale` next to its bias
        }
        modules_.emplace(parent_of(name), name);
        const std::size_t line = std::string_view(name).rfind('_');
        if (!is_plain && line != std::string_view::npos) {  // "gate_up_proj_blocks"
            modules_.emplace(std::string_view(name).substr(0, line), name);
        }
    }
}

std::string_view ScaleOwners::owner_of(std::string_view name) const {
    for (std::size_t cut = name.size(); cut-- > 0;) {
        if (!is_separator(name[cut])) {
            continue;
        }
        const auto meaning = meaning_of(name, cut + 1);
        if (!meaning) {
            return {};
        }
        const std::string_view before = name.substr(0, cut);
        if (const auto found = tensors_.find(before);
            found != tensors_.end() && meaning->some && (meaning->all || name[cut] != '_')) {
            return found->second;
        }
        if (const auto found = modules_.find(before);
            found != modules_.end() && meaning->alone && meaning->all) {
            return found->second;
        }
    }
    const auto meaning = meaning_of(name, 0);
    const auto found = modules_.find(std::string_view());
    const bool is_of_all = found != modules_.end() && meaning && meaning->alone && meaning->all;
    return is_of_all ? found->second : std::string_view();
}

std::string quantized_as(std::span<const DescribedTensor> tensors) {
    const auto said = [](std::string_view what, std::string_view name) {
        return std::string(what) + " ('" + std::string(name) + "')";
    };
    for (const auto& [part, what] : kSigns) {
        for (const DescribedTensor& one : tensors) {
            if (ends_with_part(one.name, part)) {
                return said(what, one.name);
            }
        }
    }
    std::vector<DescribedTensor> packed;
    std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(packed),
                 [](const DescribedTensor& one) { return !is_converted(one.dtype, "float32"); });
    const ScaleOwners owners(packed);
    const DescribedTensor* narrow = nullptr;
    for (const DescribedTensor& one : tensors) {
        if (const std::string_view owner = owners.owner_of(one.name);
            !owner.empty() && owner != one.name) {
            return "weights with scales ('" + std::string(owner) + "' with '" + one.name + "')";
        }
        narrow = narrow == nullptr && is_narrow(one.dtype) ? &one : narrow;
    }
    return narrow != nullptr ? said(narrow->dtype + " weights", narrow->name) : std::string();
}

}  // namespace penstock::state
