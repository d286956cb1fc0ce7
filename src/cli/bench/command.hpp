// SPDX-License-Identifier: Apache-2.0
// `penstock bench`.
#pragma once

#include "cli/bench/options.hpp"

#include <span>
#include <string>

namespace penstock::cli {

/// Throws Error and Interrupted. `command` is for the JSON.
void bench(const BenchOptions& options, std::span<const std::string> command);

}  // namespace penstock::cli
