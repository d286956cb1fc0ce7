// SPDX-License-Identifier: Apache-2.0
// The read rate of a training job.
#pragma once

#include <penstock/plan_answer.hpp>

#include <optional>
#include <string>
#include <vector>

namespace penstock::plan {

/// Numbers are finite and above 0.
struct TrainOptions {
    /// "resnet50", "unet3d", ...: see train_presets(). Empty if samples_per_second and
    /// bytes_per_sample are given.
    std::string model;
    std::string preset;  ///< "snia-2024", "storage-3.0", ...; empty: the first that has the model
    std::string accelerator;  ///< "h100", ...; empty: the first of the preset that has the model
    double accelerators = 1;  ///< a whole number
    double utilisation = 1;   ///< the share of time in which accelerators compute, at most 1
    std::optional<double> samples_per_second;  ///< of one accelerator, instead of the preset's
    std::optional<double> bytes_per_sample;    ///< instead of the preset's
    std::optional<double> storage;             ///< bytes/s that the storage reads, to check it
    std::optional<double> storage_low;         ///< the ends of its 95 % interval
    std::optional<double> storage_high;
    bool list = false;  ///< a table of all presets, and nothing else
};

/// Figures: read_bytes_per_second, samples_per_second (of all accelerators), and, if the preset has
/// a passing utilisation, pass_bytes_per_second. With `storage` storage_bytes_per_second and
/// accelerators_fed, with an interval also their _low and _high, and a note that says whether it is
/// enough. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer train(const TrainOptions& options);

/// A published throughput of an accelerator.
struct TrainPreset {
    std::string preset;             ///< "snia-2024", "training-3.1", "storage-1.0", "dlio", ...
    std::string model;              ///< "resnet50"
    std::string accelerator;        ///< "h100"
    double samples_per_second = 0;  ///< of one accelerator
    double bytes_per_sample = 0;
    double batch = 0;        ///< samples a step of one accelerator; 0 if the source has none
    double utilisation = 0;  ///< the minimum to pass; 0 if the source has none
    double samples_per_file = 1;
    std::string source;        ///< of samples_per_second
    std::string bytes_source;  ///< of bytes_per_sample
};

/// All rows, in the order of the presets. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<TrainPreset> train_presets();

}  // namespace penstock::plan
