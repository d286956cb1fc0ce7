// SPDX-License-Identifier: Apache-2.0
// The two ways between a disk and a GPU, in turns: pinned memory of the host, and cuFile where that
// is direct. The faster one of a pair goes into the options file, and `gpu_path` "auto" takes it.
#pragma once

#include "cli/tune/search.hpp"
#include "probe/statistics.hpp"

#include <penstock/gpu.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace penstock::cli {

/// What was measured between one disk and one GPU.
struct GpuWays {
    Gpu gpu;
    bool fake = false;           ///< the driver is the fake one
    DeviceId disk;               ///< of the file system
    std::string why_not;         ///< why cuFile was not measured to the end; empty: it was
    std::vector<Rates> bounce;   ///< of each turn; 0: not measured
    std::vector<Rates> cufile;   ///< the same
    probe::RatioInterval ratio;  ///< of cuFile to bounce, reads and writes together
    GpuPath choice = GpuPath::kBounce;

    /// For EngineOptions::tuned_gpu_paths.
    [[nodiscard]] TunedGpuPath tuned() const { return {disk, gpu.pci, choice}; }
};

/// Runs each way once a turn, in mirrored order, and chooses: pinned memory where the whole 95 %
/// interval lies below 1, and where cuFile may not run (`ways.why_not`) or fails; else cuFile,
/// which spares the memory of the host. `run` gives the rates of one turn of a way, and throws
/// Error where it fails.
void compare_gpu_ways(GpuWays& ways, std::size_t turns, const std::function<Rates(GpuPath)>& run);

/// A paragraph for people.
[[nodiscard]] std::string gpu_ways_text(const GpuWays& ways);

[[nodiscard]] nlohmann::ordered_json gpu_ways_json(const GpuWays& ways);

/// `paths` with the row of one pair put in or replaced.
[[nodiscard]] std::vector<TunedGpuPath> with_pair(std::vector<TunedGpuPath> paths,
                                                  const TunedGpuPath& pair);

}  // namespace penstock::cli
