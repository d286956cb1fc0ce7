// SPDX-License-Identifier: Apache-2.0
// The speed of a model whose weights are read from storage in every pass.
#pragma once

#include <penstock/plan_answer.hpp>

#include <optional>
#include <string>
#include <vector>

namespace penstock::plan {

/// Numbers are finite and above 0 unless said otherwise.
struct StreamOptions {
    std::string preset;  ///< a published run; its numbers replace those not given
    std::string model;   ///< a name of model_named()
    std::string config;  ///< the text of a config.json
    std::optional<double> bytes_per_parameter;  ///< of the weights (default: 2)
    std::optional<double> rate;                 ///< bytes/s that storage delivers
    std::optional<double> rate_low;             ///< the ends of its 95 % interval, if measured
    std::optional<double> rate_high;
    /// Bytes of host memory and of accelerator memory, for keys and values and for weights. First
    /// they hold the keys and values of the batch (in accelerator memory if it is given; in host
    /// memory with `kv_host`), then as many weights as fit. Instead of `resident` and
    /// `resident_device`.
    std::optional<double> memory;
    std::optional<double> memory_device;
    bool kv_host = false;                        ///< keys and values in host memory
    std::optional<double> kv_bytes_per_element;  ///< default: 2 (bf16); 1 for fp8
    std::optional<double> kv_bytes_per_token;    ///< of a sequence, instead of the model's
    double resident = 0;                         ///< bytes of weights that stay in host memory
    double resident_device = 0;    ///< bytes of weights that stay in the accelerator's memory
    std::optional<double> link;    ///< bytes/s from host to accelerator (PCIe)
    std::optional<double> flops;   ///< operations a second of the accelerator, at its peak or less
    std::optional<double> batch;   ///< concurrent sequences (default: 1)
    std::optional<double> prompt;  ///< tokens of a prompt (default: 1)
    std::optional<double> generate;  ///< tokens generated for each (default: 32)
    bool list = false;               ///< the published runs with their bounds, and nothing else
};

/// An upper bound: no implementation with the same reads is faster. Figures: weights_bytes,
/// streamed_bytes (from storage, in a pass), resident_bytes, resident_device_bytes, pass_seconds,
/// prefill_seconds, tokens_per_second; for a preset published_tokens_per_second and share_of_bound;
/// for a known model kv_bytes_per_token and kv_cache_bytes (of the batch, at its longest); with an
/// interval of the rate tokens_per_second_low and _high. Throws Error (kInvalidArgument,
/// kUnsupported). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer stream(const StreamOptions& options);

}  // namespace penstock::plan
