// SPDX-License-Identifier: Apache-2.0
#include "format/fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace penstock::format {

namespace {

constexpr std::size_t kShownBytesMax = 120;

// Bytes of the UTF-8 character at the head of `text`; 0 where there is none.
std::size_t character_bytes(std::string_view text) {
    const auto at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const auto continues = [&](std::size_t i) {
        return i < text.size() && (at(i) & 0xC0U) == 0x80;
    };
    const unsigned char first = at(0);
    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xC2 && first <= 0xDF) {
        return continues(1) ? 2 : 0;
    }
    if (first >= 0xE0 && first <= 0xEF) {
        if (!continues(1) || !continues(2)) {
            return 0;
        }
        const bool overlong = first == 0xE0 && at(1) < 0xA0;
        const bool surrogate = first == 0xED && at(1) > 0x9F;
        return overlong || surrogate ? 0 : 3;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        if (!continues(1) || !continues(2) || !continues(3)) {
            return 0;
        }
        const bool overlong = first == 0xF0 && at(1) < 0x90;
        const bool beyond = first == 0xF4 && at(1) > 0x8F;
        return overlong || beyond ? 0 : 4;
    }
    return 0;
}

// Escapes what begins before `end`, and says where it came to.
std::size_t escape(std::string_view text, std::size_t end, std::string& out) {
    std::size_t at = 0;
    while (at < end) {
        const std::size_t bytes = character_bytes(text.substr(at));
        const auto byte = static_cast<unsigned char>(text[at]);
        // U+0080 to U+009F, which terminals obey as they do those below 32.
        const bool c1 =
            bytes == 2 && byte == 0xC2 && static_cast<unsigned char>(text[at + 1]) < 0xA0;
        if (c1) {
            out += fmt::format("\\x{:02x}", byte);
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at + 1]));
            at += bytes;
        } else if (bytes == 0 || byte < 0x20 || byte == 0x7F) {
            out += fmt::format("\\x{:02x}", byte);
            ++at;
        } else {
            out += text.substr(at, bytes);
            at += bytes;
        }
    }
    return at;
}

}  // namespace

Failure fault(std::string_view operation, std::string_view message, std::uint64_t offset) {
    return base::fail(base::error(ErrorCode::kInvalidArgument, operation, message, {}, offset));
}

std::string escaped(std::string_view text) {
    std::string out;
    escape(text, text.size(), out);
    return out;
}

std::string shown(std::string_view text) {
    std::string out = "'";
    const std::size_t at = escape(text, std::min(text.size(), kShownBytesMax), out);
    out += at < text.size() ? fmt::format("...' ({} bytes)", text.size()) : "'";
    return out;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t bytes = character_bytes(text);
        if (bytes == 0) {
            return false;
        }
        text.remove_prefix(bytes);
    }
    return true;
}

}  // namespace penstock::format
