// SPDX-License-Identifier: Apache-2.0
// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing past U+10FFFF. And
// Latin-1, which is what pickles of protocol 2 hold bytes as.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::format {

[[nodiscard]] bool is_utf8(std::string_view text);

/// Bytes of the first character of `text`, which is not empty; 0 for invalid UTF-8.
[[nodiscard]] std::size_t character_bytes(std::string_view text);

/// Bytes at the beginning of `text` that a JSON string holds unescaped, and that are ASCII.
[[nodiscard]] std::size_t plain_bytes(std::string_view text);

/// Appends the code point, up to U+10FFFF, as UTF-8 encodes it.
void append_character(std::string& out, std::uint32_t code);

/// Bytes of `latin1` as UTF-8.
[[nodiscard]] std::size_t utf8_bytes(std::string_view latin1);
/// Appends `latin1` as UTF-8: a byte from 0x80 on becomes two.
void append_utf8(std::string& out, std::string_view latin1);
/// The inverse for valid UTF-8; nothing for a character past U+00FF.
[[nodiscard]] std::optional<std::string> latin1_of(std::string_view utf8);

}  // namespace penstock::format
