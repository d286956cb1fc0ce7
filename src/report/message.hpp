// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/error.hpp>

#include <string>

namespace penstock::report {

/// The message of an Error, without the name of its code that std::system_error appends.
[[nodiscard]] std::string message_of(const Error& error);

}  // namespace penstock::report
