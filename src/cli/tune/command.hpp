// SPDX-License-Identifier: Apache-2.0
// `penstock tune`.
#pragma once

#include "cli/tune/options.hpp"

#include <span>
#include <string>

namespace penstock::cli {

/// Throws Error and Interrupted. `command` is for the JSON.
void tune(const TuneOptions& options, std::span<const std::string> command);

}  // namespace penstock::cli
