// SPDX-License-Identifier: Apache-2.0
// `penstock bench PATH --device cuda:0`: the memory of a GPU, next to what could be had (the lesser
// of the disk and of pinned copies, in turns in the same run) and next to other programs.
#pragma once

#include "cli/bench/options.hpp"

#include <span>
#include <string>

namespace penstock::cli {

/// Throws Error and Interrupted. kUnsupported where there is no such GPU.
void bench_gpu(const BenchOptions& options, std::span<const std::string> command);

}  // namespace penstock::cli
