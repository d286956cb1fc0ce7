// SPDX-License-Identifier: Apache-2.0
// Measures the rates of folders, and what they mean for a job.
//
//     const penstock::plan::StorageRates rates = penstock::plan::measure_rates({.paths =
//     {"/data"}}); std::cout << rates.files->mean << " bytes/s, from " << rates.files->low << '\n';
//     const auto answer = penstock::plan::ask_measured("train", {{"model", "unet3d"}},
//                                                      {.paths = {"/data"}});
#pragma once

#include <penstock/plan.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

/// A report while folders are measured.
struct MeasureStep {
    std::string doing;            ///< "reading in sequence", "making the scratch file /data/..."
    std::size_t step = 0;         ///< from 1 on; 0 while scratch files are made
    std::size_t steps = 0;        ///< number of steps
    double seconds_left = 0;      ///< of the whole measurement, approximately
    double bytes_per_second = 0;  ///< of this step so far
};

/// The paths to measure, and how long. `size` in bytes: finite, 4 MiB or more.
struct MeasureOptions {
    /// Folders, files or block devices; all are read concurrently. Files and devices are only read.
    std::vector<std::string> paths;
    double seconds = 20;         ///< in total, with the making of scratch files: 0.1 to 3600
    std::optional<double> size;  ///< of a scratch file; default: 1 GiB, or what 5 s of writing give
    bool files = true;           ///< sequential reads: 1 MiB, 16 concurrent
    bool samples = true;         ///< random reads: 128 KiB, 32 concurrent
    bool writes = true;  ///< writes that end with a sync: 1 MiB, 16 concurrent; only in folders
    /// Called on the caller's thread, about ten times a second. False stops: kCancelled.
    std::function<bool(const MeasureStep&)> progress;
};

/// The rates of all paths together, without the page cache of this host. Nothing for a pattern that
/// was not requested, and for writes that would change a given file or device.
struct StorageRates {
    std::optional<MeasuredRate> files;
    std::optional<MeasuredRate> samples;
    std::optional<MeasuredRate> writes;
    std::string places;  ///< for people: "/data (ext4, direct I/O)"
};

/// Reads and writes the paths. Only direct I/O is used: no rate comes from the page cache. Scratch
/// files are unlinked as soon as they are made, so that nothing is left however the process ends.
/// Throws Error: kInvalidArgument for options out of range, a repeated path, a file under 4 MiB,
/// and a file if only writes are requested; kUnsupported for a file system without direct I/O;
/// kCancelled by `progress`; kSystem for a folder that is missing, full, or may not be written.
/// Thread-safe; blocks.
[[nodiscard]] PENSTOCK_API StorageRates measure_rates(const MeasureOptions& options);

/// ask() with measured rates in place of those that are not given: for "feeds" (whose answer is
/// then called "measure"), and for "train", "checkpoint", "restore" and "stream". Only the patterns
/// that the question needs are measured; `files`, `samples` and `writes` of the options are
/// ignored. Wrong words are refused before anything is written. Throws as ask() and
/// measure_rates(). Thread-safe; blocks.
[[nodiscard]] PENSTOCK_API Answer ask_measured(std::string_view verb,
                                               const std::vector<Word>& words,
                                               const MeasureOptions& options);

/// The same for feeds(), with its options as a struct, without rates.
[[nodiscard]] PENSTOCK_API Answer measure(const FeedsOptions& job, const MeasureOptions& options);

}  // namespace penstock::plan
