// SPDX-License-Identifier: Apache-2.0
#include "format/fault.hpp"

#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::format {

namespace {

constexpr std::size_t kShownBytesMax = 120;

// Escapes text that begins before `end`, and returns where it stopped.
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

Failure unsupported(std::string_view operation, std::string_view message, std::uint64_t offset) {
    return base::fail(base::error(ErrorCode::kUnsupported, operation, message, {}, offset));
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

}  // namespace penstock::format
