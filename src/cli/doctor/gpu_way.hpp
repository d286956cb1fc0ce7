// SPDX-License-Identifier: Apache-2.0
// The way between one disk and one GPU, and what makes it slower than it could be: cuFile or
// through pinned memory, the IOMMU, memory nodes, PCIe links and switches.
#pragma once

#include "cli/doctor/finding.hpp"

#include <penstock/gpu.hpp>
#include <penstock/types.hpp>

#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

struct GpuWayQuestion {
    Gpu gpu;
    DeviceId disk;          ///< of the file system or the block device; a partition's is its disk's
    bool straight = false;  ///< cuFile can move bytes between them without memory of the host
    std::string way;        ///< "nvidia-fs" or "PCI P2PDMA", where straight
    std::vector<std::string> reasons;  ///< else: why not, and what to do; each by itself
    std::optional<GpuPath> tuned;      ///< what `penstock tune --device` found for the pair
    std::string sys = "/sys";          ///< a test lays out its own
};

/// Adds findings "gpu N way", and "gpu N node", "gpu N iommu" and "disk link" where there is
/// something to say. Reads small files of sysfs alone; a fact that is not there is left out.
void check_gpu_way(const GpuWayQuestion& question, Findings& findings);

}  // namespace penstock::cli
