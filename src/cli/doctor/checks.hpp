// SPDX-License-Identifier: Apache-2.0
// The checks of doctor. Each check reads only files and calls that need no privileges; anything
// unreadable is left out or reported as unknown, never guessed.
#pragma once

#include "cli/doctor/finding.hpp"

#include <penstock/types.hpp>

#include <string>
#include <vector>

namespace penstock::cli {

/// Kernel, io_uring, the backend taken, limits, huge pages, processors and memory nodes.
void check_machine(Findings& findings);

/// The CUDA driver, which this opens, and each GPU with its link; or why there is no GPU.
void check_gpus(Findings& findings);

/// Direct I/O and alignment on PATH, its disk and queue, the way to each GPU, free space, I/O
/// limits, and 1 MiB written there and read back (in a file without a name) when PATH is a folder.
/// `tuned`: the ways to GPUs that `penstock tune` found.
void check_path(const std::string& path, const std::vector<TunedGpuPath>& tuned,
                Findings& findings);

}  // namespace penstock::cli
