// SPDX-License-Identifier: Apache-2.0
// The size that a data set needs so that a benchmark measures storage and not memory.
#pragma once

#include <penstock/plan_answer.hpp>

#include <optional>
#include <string>

namespace penstock::plan {

/// The rule of MLPerf Storage: a data set is at least 5 times the memory of all hosts, and at least
/// 500 steps long. Numbers are finite and above 0.
struct SizeOptions {
    std::string model;        ///< as in TrainOptions; empty if batch and bytes_per_sample are given
    std::string preset;       ///< empty: the first that has the model with a batch
    std::string accelerator;  ///< empty: the first of the preset
    double accelerators = 1;  ///< a whole number
    double hosts = 1;         ///< a whole number
    std::optional<double> memory_bytes;  ///< of one host; required
    std::optional<double> batch;         ///< samples a step of one accelerator
    std::optional<double> bytes_per_sample;
    std::optional<double> samples_per_file;
    double steps = 500;        ///< a whole number
    double memory_factor = 5;  ///< data divided by the memory of all hosts
};

/// Figures: samples_for_steps, samples_for_memory, samples, files, data_bytes, cached_share, and
/// epoch_seconds if the preset has a throughput. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer size(const SizeOptions& options);

}  // namespace penstock::plan
