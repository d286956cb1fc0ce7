// SPDX-License-Identifier: Apache-2.0
// Errors of formats. What a file says goes into messages quoted and cut short: it may be hostile.
#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::format {

using base::Failure;
using base::Result;

/// A file that is not what its format allows, or a value that the format cannot hold: an error of
/// code kInvalidArgument. `operation` as "read safetensors".
[[nodiscard]] Failure fault(std::string_view operation, std::string_view message,
                            std::uint64_t offset = kNoOffset);

/// The text with control characters and what is no UTF-8 escaped: it may go to a terminal.
[[nodiscard]] std::string escaped(std::string_view text);

/// 'text', escaped, cut after 120 bytes.
[[nodiscard]] std::string shown(std::string_view text);

}  // namespace penstock::format
