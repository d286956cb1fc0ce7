// SPDX-License-Identifier: Apache-2.0
// UTF-8 as Unicode has it: no overlong forms, no surrogates, nothing past U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace penstock::format {

[[nodiscard]] bool is_utf8(std::string_view text);

/// Bytes of the character at the head of `text`, which has one; 0 where it is no UTF-8.
[[nodiscard]] std::size_t character_bytes(std::string_view text);

/// Bytes at the head of `text` that a string of JSON holds as they are, and that are ASCII.
[[nodiscard]] std::size_t plain_bytes(std::string_view text);

}  // namespace penstock::format
