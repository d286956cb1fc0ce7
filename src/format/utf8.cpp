// SPDX-License-Identifier: Apache-2.0
#include "format/utf8.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace penstock::format {

namespace {

constexpr std::size_t kWordBytes = 8;

bool is_plain(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
}

// Counts the bytes before the first one that is not plain.
std::size_t plain_of_word(const char* bytes) {
    static_assert(std::endian::native == std::endian::little);
    constexpr std::uint64_t kOnes = 0x0101010101010101;
    std::uint64_t word = 0;
    std::memcpy(&word, bytes, kWordBytes);
    // The first byte below the limit gets its high bit: no earlier byte borrows from it.
    const auto below = [](std::uint64_t w, std::uint64_t limit) { return w - limit * kOnes; };
    const std::uint64_t special =
        below(word, 0x20) | below(word ^ ('"' * kOnes), 1) | below(word ^ ('\\' * kOnes), 1) | word;
    return static_cast<std::size_t>(std::countr_zero(special & (0x80 * kOnes))) / 8;
}

}  // namespace

std::size_t plain_bytes(std::string_view text) {
    std::size_t at = 0;
    while (text.size() - at >= kWordBytes) {
        const std::size_t plain = plain_of_word(text.data() + at);
        at += plain;
        if (plain < kWordBytes) {
            return at;
        }
    }
    while (at < text.size() && is_plain(text[at])) {
        ++at;
    }
    return at;
}

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

bool is_utf8(std::string_view text) {
    while (true) {
        text.remove_prefix(plain_bytes(text));
        if (text.empty()) {
            return true;
        }
        const std::size_t bytes = character_bytes(text);
        if (bytes == 0) {
            return false;
        }
        text.remove_prefix(bytes);
    }
}

}  // namespace penstock::format
