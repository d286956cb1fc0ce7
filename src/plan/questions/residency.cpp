// SPDX-License-Identifier: Apache-2.0
#include "plan/questions/residency.hpp"

#include "plan/amount.hpp"
#include "plan/derive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kStream = "stream";
constexpr double kElementBytes = 2;

Input given_input(const char* name, double value, const char* unit, bool given) {
    return {name, value, unit, std::string(given ? kGiven : kDefault)};
}

bool has_cache(const StreamOptions& options, const ModelParameters& model) {
    return model.cache || options.kv_bytes_per_token;
}

// The keys and values in the memory of the host, or in that of the accelerator.
bool is_on_host(const StreamOptions& options) {
    return options.kv_host || !options.memory_device;
}

void add_cache_of_layers(Answer& out, const StreamOptions& options, const KeyValueCache& cache,
                         const Input& batch) {
    const Input each{"kv_elements", static_cast<double>(cache.elements), "",
                     "of a layer and a token: key/value heads x their width x 2, or the compressed "
                     "vector of latent attention; config.json"};
    const Input bytes =
        given_input("kv_bytes_per_element", options.kv_bytes_per_element.value_or(kElementBytes),
                    "B", options.kv_bytes_per_element.has_value());
    const auto full = static_cast<double>(cache.layers);
    const auto windowed = static_cast<double>(cache.windowed_layers);
    const Input layers{"kv_layers", full, "", "layers that keep all tokens; config.json"};
    const Input with_window{"windowed_layers", windowed, "",
                            "layers with a sliding window; config.json"};
    const Input window{"window", static_cast<double>(cache.window), "", "sliding_window"};
    const bool plain = cache.windowed_layers == 0;
    std::vector<Input> inputs{each, bytes, layers};
    if (!plain) {
        inputs.push_back(with_window);
    }
    add_figure(out, {"kv_bytes_per_token", "keys and values of a token",
                     each.value * bytes.value * (full + windowed), "B",
                     plain ? "kv_elements * kv_bytes_per_element * kv_layers"
                           : "kv_elements * kv_bytes_per_element * (kv_layers + windowed_layers)",
                     inputs});
    const Input tokens = input_of(out, "kv_tokens");
    if (plain) {
        const Input token = input_of(out, "kv_bytes_per_token");
        add_figure(out, {"kv_cache_bytes",
                         "keys and values of the batch",
                         token.value * tokens.value * batch.value,
                         "B",
                         "kv_bytes_per_token * kv_tokens * batch",
                         {token, tokens, batch}});
        return;
    }
    inputs.insert(inputs.end(), {tokens, window, batch});
    add_figure(
        out,
        {"kv_cache_bytes", "keys and values of the batch",
         each.value * bytes.value *
             (full * tokens.value + windowed * std::min(tokens.value, window.value)) * batch.value,
         "B",
         "kv_elements * kv_bytes_per_element * (kv_layers * kv_tokens + windowed_layers * "
         "min(kv_tokens, window)) * batch",
         inputs});
}

// Bytes that a memory has left for weights when the keys and values are in it.
double left_of(const Answer& out, const char* name, double memory, bool holds_cache) {
    if (!holds_cache) {
        return memory;
    }
    const double cache = out.at("kv_cache_bytes").value;
    if (cache > memory) {
        refuse(
            kStream,
            fmt::format("{}: got {}, and the keys and values of the batch take {}; expected more "
                        "memory, fewer sequences or tokens, or keys and values of fewer bytes",
                        name, shown(memory, "B"), shown(cache, "B")));
    }
    return memory - cache;
}

// Adds what stays of the weights in one memory; `taken` of them stay elsewhere.
void add_resident(Answer& out, const char* figure, const char* label, const char* name,
                  const std::optional<double>& memory, double given, bool holds_cache,
                  const char* elsewhere) {
    const Input weights = input_of(out, "weights_bytes");
    if (!memory) {
        const char* const option =
            figure == std::string_view("resident_bytes") ? "resident" : "resident_device";
        add_figure(
            out, {figure, label, given, "B", option, {given_input(option, given, "B", given > 0)}});
        return;
    }
    const double left = left_of(out, name, *memory, holds_cache);
    std::vector<Input> inputs{weights, given_input(name, *memory, "B", true)};
    std::string rest = "weights_bytes";
    double most = weights.value;
    if (elsewhere != nullptr) {
        inputs.push_back(input_of(out, elsewhere));
        rest += std::string(" - ") + elsewhere;
        most -= inputs.back().value;
    }
    std::string room = name;
    if (holds_cache) {
        inputs.push_back(input_of(out, "kv_cache_bytes"));
        room += " - kv_cache_bytes";
    }
    add_figure(out, {figure, label, std::min(most, left), "B",
                     fmt::format("min({}, {})", rest, room), inputs});
}

}  // namespace

void add_kv_cache(Answer& out, const StreamOptions& options, const ModelParameters& model,
                  const Input& batch, const Input& prompt, const Input& generate) {
    if (options.kv_bytes_per_token && options.kv_bytes_per_element) {
        refuse(kStream,
               "kv_bytes_per_token: got this and kv_bytes_per_element; expected one of them");
    }
    if (!has_cache(options, model)) {
        return;
    }
    // The last token generated is not read by another pass.
    add_figure(out, {"kv_tokens",
                     "tokens kept of a sequence",
                     prompt.value + generate.value - 1,
                     "tokens",
                     "prompt + generate - 1",
                     {prompt, generate}});
    if (!options.kv_bytes_per_token) {
        add_cache_of_layers(out, options, *model.cache, batch);
        return;
    }
    const Input token = given_input("kv_bytes_per_token", *options.kv_bytes_per_token, "B", true);
    const Input tokens = input_of(out, "kv_tokens");
    add_figure(out, {"kv_cache_bytes",
                     "keys and values of the batch",
                     token.value * tokens.value * batch.value,
                     "B",
                     "kv_bytes_per_token * kv_tokens * batch",
                     {token, tokens, batch}});
}

void add_residents(Answer& out, const StreamOptions& options, const ModelParameters& model) {
    const auto both = [](const char* resident, const char* memory) {
        refuse(kStream,
               fmt::format("{}: got this and {}, which is what weights and keys and values "
                           "have together; expected one of them",
                           resident, memory));
    };
    if (options.resident > 0 && options.memory) {
        both("resident", "memory");
    }
    if (options.resident_device > 0 && options.memory_device) {
        both("resident_device", "memory_device");
    }
    if ((options.memory || options.memory_device) && !has_cache(options, model)) {
        refuse(kStream,
               fmt::format("memory: the keys and values of {} are not known, so what is left for "
                           "weights is not either; expected kv_bytes_per_token with it, a "
                           "config.json of a decoder, or resident in its place",
                           model.name));
    }
    const bool host = is_on_host(options);
    if (options.kv_host && !options.memory) {
        refuse(kStream, "kv_host: expected memory with it, the host memory that has them");
    }
    add_resident(out, "resident_device_bytes", "weights in the accelerator's memory",
                 "memory_device", options.memory_device, options.resident_device, !host, nullptr);
    add_resident(out, "resident_bytes", "weights in host memory", "memory", options.memory,
                 options.resident, host, "resident_device_bytes");
    const double weights = out.at("weights_bytes").value;
    const double resident = out.at("resident_bytes").value + out.at("resident_device_bytes").value;
    if (resident > weights * (1 + 1e-12)) {
        refuse(
            kStream,
            fmt::format("resident: got {} in memory of {} of weights; expected at most all of them",
                        shown(resident, "B"), shown(weights, "B")));
    }
}

}  // namespace penstock::plan
