// SPDX-License-Identifier: Apache-2.0
// The number of accelerators that a measured storage feeds, and whether a checkpoint is written in
// time.
#pragma once

#include <penstock/plan_answer.hpp>

#include <optional>
#include <string>

namespace penstock::plan {

/// A mean of runs with the ends of its 95 % interval (Student's t). In bytes a second, above 0.
struct MeasuredRate {
    double mean = 0;
    double low = 0;
    double high = 0;
};

/// Rates are bytes a second, finite and above 0. `_low` and `_high` are the ends of a 95 % interval
/// (low <= rate <= high); without them a rate is taken as exact.
struct FeedsOptions {
    std::optional<double> files;    ///< sequential reads: large files, and shards of samples
    std::optional<double> samples;  ///< random reads of 128 KiB: one file for each sample
    std::optional<double> writes;   ///< durable writes: a checkpoint
    std::optional<double> files_low;
    std::optional<double> files_high;
    std::optional<double> samples_low;
    std::optional<double> samples_high;
    std::optional<double> writes_low;
    std::optional<double> writes_high;
    std::string model;  ///< these five as in TrainOptions; without them a table of all presets
    std::string preset;
    std::string accelerator;
    std::optional<double> samples_per_second;
    std::optional<double> bytes_per_sample;
    std::optional<double> checkpoint_bytes;  ///< size of a checkpoint that is written
    double within = 360;                     ///< seconds that writing it may take
};

/// Whether each sample of a model is one file, so that reads are random. False: sequential reads.
[[nodiscard]] PENSTOCK_API bool reads_files_of_samples(const std::string& model);

/// Figures: files_, samples_ and writes_bytes_per_second, each with _low and _high; for one job
/// accelerators, accelerators_low and _high; for a checkpoint checkpoint_seconds, _low and _high.
/// If no job is named, the table "feeds" has all presets. The notes say it in a sentence. Throws
/// Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer feeds(const FeedsOptions& options);

}  // namespace penstock::plan
