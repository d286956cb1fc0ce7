// SPDX-License-Identifier: Apache-2.0
// Several jobs on one storage: the sum of their reads and writes over time.
#pragma once

#include <penstock/plan_answer.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

/// Numbers are finite and above 0, `start` from 0 on. Times are seconds, sizes bytes. Each kind
/// takes some of the members:
///
///     train        model or samples_per_second and bytes_per_sample, accelerators, utilisation;
///                  start, length (default: to the end)
///     evaluation   the same; runs for `length` seconds, once in `every` seconds
///     checkpoint   bytes, every, within (seconds that a save may take)
///     restore      bytes, within, copies (number of readers of all bytes), start
///     preparation  bytes (read) and write_bytes, within; start, every
///     inference    bytes (of a model), within, copies (replicas that load it); start, every
struct MixJob {
    std::string name;  ///< for people; empty: the kind
    std::string kind;
    std::string model;  ///< these seven as in TrainOptions
    std::string preset;
    std::string accelerator;
    double accelerators = 1;
    double utilisation = 1;
    std::optional<double> samples_per_second;
    std::optional<double> bytes_per_sample;
    std::optional<double> bytes;
    std::optional<double> write_bytes;
    double copies = 1;
    std::optional<double> start;  ///< of the first time; default: 0, of a checkpoint `every`
    std::optional<double> length;
    std::optional<double> every;  ///< default: once
    std::optional<double> within;
};

struct MixOptions {
    std::string title;
    double length = 86400;  ///< simulated seconds
    std::vector<MixJob> jobs;
};

/// Figures: peak_bytes_per_second of the sum, peak_read_bytes_per_second,
/// peak_write_bytes_per_second, mean_bytes_per_second, p50_, p90_, p99_bytes_per_second (by time),
/// read_bytes, write_bytes, and aligned_bytes_per_second (if all bursts coincide). Table "jobs";
/// series "sum", "read", "write". Throws Error (kInvalidArgument) with the job. Thread-safe.
[[nodiscard]] PENSTOCK_API Answer mix(const MixOptions& options);

/// The jobs of a JSON document: {"title": "...", "length": "4h", "jobs": [{"kind": "train", ...}]},
/// with the members of MixJob, numbers or words with units. Throws Error (kInvalidArgument).
[[nodiscard]] PENSTOCK_API MixOptions mix_of_json(std::string_view json);

}  // namespace penstock::plan
