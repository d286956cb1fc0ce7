// SPDX-License-Identifier: Apache-2.0
// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing past U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace penstock::format {

[[nodiscard]] bool is_utf8(std::string_view text);

/// Bytes of the first character of `text`, which is not empty; 0 for invalid UTF-8.
[[nodiscard]] std::size_t character_bytes(std::string_view text);

/// Bytes at the beginning of `text` that a JSON string holds unescaped, and that are ASCII.
[[nodiscard]] std::size_t plain_bytes(std::string_view text);

}  // namespace penstock::format
