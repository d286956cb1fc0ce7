// SPDX-License-Identifier: Apache-2.0
// The one place that reads the environment. PENSTOCK_<NAME> overrides the default of an option;
// what a program sets itself stays.
#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::base {

/// The text of PENSTOCK_<name>, or nothing when it is not set or empty.
[[nodiscard]] std::optional<std::string> environment_text(const char* name);

/// PENSTOCK_<name> as a size (parse_bytes) between `min` and `max`, else `otherwise`. An error that
/// names the variable when it means nothing.
[[nodiscard]] Result<std::uint64_t> environment_bytes(const char* name, std::uint64_t otherwise,
                                                      std::uint64_t min, std::uint64_t max);

}  // namespace penstock::base
