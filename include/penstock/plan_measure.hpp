// SPDX-License-Identifier: Apache-2.0
// What folders deliver, measured, and what that means for a job.
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
    std::size_t steps = 0;        ///< of all
    double seconds_left = 0;      ///< of all, about
    double bytes_per_second = 0;  ///< of this step so far
};

/// The paths to measure, and how long. `size` in bytes: finite, 4 MiB or more.
struct MeasureOptions {
    /// Folders, files or block devices; all are read at once. Files and devices are only read.
    std::vector<std::string> paths;
    double seconds = 20;         ///< for all of it, the making of scratch files too: 0.1 to 3600
    std::optional<double> size;  ///< of a scratch file; default: 1 GiB, or what 5 s of writing give
    bool files = true;           ///< reads in sequence: 1 MiB, 16 at once
    bool samples = true;         ///< random reads: 128 KiB, 32 at once
    bool writes = true;  ///< writes that end with a sync: 1 MiB, 16 at once; of folders alone
    /// Called on the caller's thread, about ten times a second. False stops: kCancelled.
    std::function<bool(const MeasureStep&)> progress;
};

/// The rates of all paths together, past the page cache of this host. Nothing where a pattern was
/// not asked for, or writes would change a file that is not ours.
struct StorageRates {
    std::optional<MeasuredRate> files;
    std::optional<MeasuredRate> samples;
    std::optional<MeasuredRate> writes;
    std::string places;  ///< for people: "/data (ext4, direct I/O)"
};

/// Reads and writes the paths. Direct I/O or nothing: no rate comes from the page cache. Scratch
/// files lose their names as soon as they are made, so that nothing is left by any end of the
/// process. Throws Error: kInvalidArgument for options out of range, a path that comes twice, a
/// file under 4 MiB, or in place of a folder where writes alone are asked for; kUnsupported for a
/// file system without direct I/O; kCancelled by `progress`; kSystem for a folder that is missing,
/// full, or may not be written. Thread-safe; blocks.
[[nodiscard]] PENSTOCK_API StorageRates measure_rates(const MeasureOptions& options);

/// ask() with the rates of the paths in place of those that are not given: of "feeds" (whose answer
/// is then called "measure"), and of "train", "checkpoint", "restore" and "stream". Only the
/// patterns that the question asks for are measured; `files`, `samples` and `writes` of the options
/// are passed over. Wrong words are refused before anything is written. Throws what ask() and
/// measure_rates() throw. Thread-safe; blocks.
[[nodiscard]] PENSTOCK_API Answer ask_measured(std::string_view verb,
                                               const std::vector<Word>& words,
                                               const MeasureOptions& options);

/// The same of feeds() with its options as a struct, whose rates are left out.
[[nodiscard]] PENSTOCK_API Answer measure(const FeedsOptions& job, const MeasureOptions& options);

}  // namespace penstock::plan
