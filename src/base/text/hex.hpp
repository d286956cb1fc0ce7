// SPDX-License-Identifier: Apache-2.0
// 64 bits as 16 hexadecimal digits, lower case; fast, as a manifest has a hundred thousand of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::base {

inline constexpr std::size_t kHexDigits = 16;

inline void append_hex(std::string& out, std::uint64_t value) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    char digits[kHexDigits];
    for (std::size_t i = kHexDigits; i-- > 0; value >>= 4U) {
        digits[i] = kDigits[value & 15U];
    }
    out.append(digits, kHexDigits);
}

/// False: not 16 digits of that form.
[[nodiscard]] inline bool parse_hex(std::string_view digits, std::uint64_t& value) {
    if (digits.size() != kHexDigits) {
        return false;
    }
    value = 0;
    for (const char c : digits) {
        const bool decimal = c >= '0' && c <= '9';
        if (!decimal && (c < 'a' || c > 'f')) {
            return false;
        }
        value = value << 4U | static_cast<std::uint64_t>(decimal ? c - '0' : c - 'a' + 10);
    }
    return true;
}

}  // namespace penstock::base
