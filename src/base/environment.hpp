// SPDX-License-Identifier: Apache-2.0
// The one place that reads the environment. PENSTOCK_<NAME> overrides the default of an option;
// what a program sets itself stays.
#pragma once

#include <optional>
#include <string>

namespace penstock::base {

/// The text of PENSTOCK_<name>, or nothing when it is not set or empty.
[[nodiscard]] std::optional<std::string> environment_text(const char* name);

}  // namespace penstock::base
