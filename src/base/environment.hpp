// SPDX-License-Identifier: Apache-2.0
// The only code that reads the environment. PENSTOCK_<NAME> overrides the default of an option, but
// not a value that a program sets itself.
#pragma once

#include <optional>
#include <string>

namespace penstock::base {

/// The text of PENSTOCK_<name>, or nothing when it is not set or empty.
[[nodiscard]] std::optional<std::string> environment_text(const char* name);

/// The text of a variable that is not Penstock's, such as NO_COLOR, or nothing when it is not set
/// or empty.
[[nodiscard]] std::optional<std::string> system_environment_text(const char* name);

}  // namespace penstock::base
