// SPDX-License-Identifier: Apache-2.0
// Errors of formats. Text from a file is quoted and cut short in messages: it may be hostile.
#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::format {

using base::Failure;
using base::Result;

/// An error of code kInvalidArgument: a file that violates its format (a reader of files makes it
/// kDamaged), or a value that the format cannot hold. `operation` as "read safetensors".
[[nodiscard]] Failure fault(std::string_view operation, std::string_view message,
                            std::uint64_t offset = kNoOffset);

/// An error of code kUnsupported: a file whose bytes may be what its writer wrote, and which is not
/// read: another form, a limit, an object. fault() is for bytes that contradict their form or one
/// another: only that is damage.
[[nodiscard]] Failure unsupported(std::string_view operation, std::string_view message,
                                  std::uint64_t offset = kNoOffset);

/// The text with control characters and invalid UTF-8 escaped: it may go to a terminal.
[[nodiscard]] std::string escaped(std::string_view text);

/// 'text', escaped, cut after 120 bytes.
[[nodiscard]] std::string shown(std::string_view text);

}  // namespace penstock::format
