// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/error.hpp>

#include <string>

namespace penstock::cli {

/// What an Error says, without the name of its code that std::system_error hangs on.
[[nodiscard]] std::string message_of(const Error& error);

}  // namespace penstock::cli
