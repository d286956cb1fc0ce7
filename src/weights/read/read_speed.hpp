// SPDX-License-Identifier: Apache-2.0
// How fast files are read, past the page cache.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <chrono>
#include <span>
#include <vector>

namespace penstock::weights {

/// Bytes a second of each list of files, each read in order and again from its start; all lists are
/// read at once, for about `time`. The first third of it is not counted: memory is touched then,
/// and a limit on the rate lets a burst through. Throws Error: kInvalidArgument for a list without
/// bytes; errors of reading.
[[nodiscard]] std::vector<double> measure_speeds(Engine& engine,
                                                 std::span<const std::vector<File>> lists,
                                                 std::chrono::nanoseconds time);

}  // namespace penstock::weights
