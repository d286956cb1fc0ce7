// SPDX-License-Identifier: Apache-2.0
#include "format/utf8.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>

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

// The states of a decoder, as distances of a shift: a row of the table has for each state the next
// one at that distance (a shift-based automaton, as Per Vognsen described it). Two instructions a
// byte, and no branch that depends on the text.
enum State : std::uint8_t {
    kBad = 0,
    kCharacter = 6,  // between two characters
    kOneMore = 12,
    kTwoMore = 18,
    kThreeMore = 24,
    kAfterE0 = 30,  // no overlong form
    kAfterEd = 36,  // no surrogate
    kAfterF0 = 42,  // no overlong form
    kAfterF4 = 48,  // nothing past U+10FFFF
};
constexpr std::uint64_t kStateMask = 63;

constexpr State first_byte(unsigned byte) {
    if (byte < 0x80) {
        return kCharacter;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        return kBad;
    }
    if (byte < 0xE0) {
        return kOneMore;
    }
    if (byte < 0xF0) {
        return byte == 0xE0 ? kAfterE0 : byte == 0xED ? kAfterEd : kTwoMore;
    }
    return byte == 0xF0 ? kAfterF0 : byte == 0xF4 ? kAfterF4 : kThreeMore;
}

constexpr std::uint64_t row_of(unsigned byte) {
    std::uint64_t row = std::uint64_t{first_byte(byte)} << kCharacter;
    if (byte >= 0x80 && byte < 0xC0) {
        row |= std::uint64_t{kCharacter} << kOneMore;
        row |= std::uint64_t{kOneMore} << kTwoMore;
        row |= std::uint64_t{kTwoMore} << kThreeMore;
        row |= std::uint64_t{byte >= 0xA0 ? kOneMore : kBad} << kAfterE0;
        row |= std::uint64_t{byte < 0xA0 ? kOneMore : kBad} << kAfterEd;
        row |= std::uint64_t{byte >= 0x90 ? kTwoMore : kBad} << kAfterF0;
        row |= std::uint64_t{byte < 0x90 ? kTwoMore : kBad} << kAfterF4;
    }
    return row;
}

constexpr auto kRows = [] {
    std::array<std::uint64_t, 256> rows{};
    for (unsigned byte = 0; byte < rows.size(); ++byte) {
        rows[byte] = row_of(byte);
    }
    return rows;
}();

std::uint64_t next_state(std::uint64_t state, std::string_view text) {
    for (const char c : text) {
        state = kRows[static_cast<unsigned char>(c)] >> (state & kStateMask);
    }
    return state;
}

constexpr std::size_t kRunBytes = 32;

bool is_ascii(std::string_view run) {
    std::array<std::uint64_t, kRunBytes / kWordBytes> words{};
    std::memcpy(words.data(), run.data(), kRunBytes);
    return ((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080) == 0;
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
    std::uint64_t state = kCharacter;
    for (; text.size() >= kRunBytes; text.remove_prefix(kRunBytes)) {
        if ((state & kStateMask) != kCharacter || !is_ascii(text)) {
            state = next_state(state, text.substr(0, kRunBytes));
        }
    }
    return (next_state(state, text) & kStateMask) == kCharacter;
}

// None of the below branches on a byte: whether a byte of a number is below 0x80 is chance.

namespace {

// `one` if `condition` is 1, `other` if it is 0.
unsigned select(unsigned condition, unsigned one, unsigned other) {
    return other ^ ((one ^ other) & (0U - condition));
}

}  // namespace

std::size_t utf8_bytes(std::string_view latin1) {
    return std::accumulate(
        latin1.begin(), latin1.end(), latin1.size(),
        [](std::size_t sum, char c) { return sum + (static_cast<unsigned char>(c) >> 7U); });
}

void append_character(std::string& out, std::uint32_t code) {
    const auto add = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
    const auto low_bits = [code](unsigned shift) { return 0x80U | ((code >> shift) & 0x3FU); };
    if (code < 0x80) {
        add(code);
        return;
    }
    if (code < 0x800) {
        add(0xC0U | (code >> 6U));
    } else {
        if (code < 0x10000) {
            add(0xE0U | (code >> 12U));
        } else {
            add(0xF0U | (code >> 18U));
            add(low_bits(12));
        }
        add(low_bits(6));
    }
    add(low_bits(0));
}

void append_utf8(std::string& out, std::string_view latin1) {
    const std::size_t before = out.size();
    const std::size_t bytes = utf8_bytes(latin1);
    out.resize(before + bytes + 1);  // the second byte is always written
    char* to = out.data() + before;
    for (const char c : latin1) {
        const unsigned byte = static_cast<unsigned char>(c);
        const unsigned two = byte >> 7U;
        to[0] = static_cast<char>(select(two, 0xC0U | (byte >> 6U), byte));
        to[1] = static_cast<char>(0x80U | (byte & 0x3FU));
        to += 1 + two;
    }
    out.resize(before + bytes);
}

std::optional<std::string> latin1_of(std::string_view utf8) {
    const auto is_second = [](char c) { return static_cast<unsigned>(c < '\xC0' && c < 0); };
    const auto is_far = [](char c) { return static_cast<unsigned char>(c) > 0xC3; };
    if (std::count_if(utf8.begin(), utf8.end(), is_far) != 0 ||
        (!utf8.empty() && is_second(utf8.front()) != 0)) {
        return std::nullopt;
    }
    std::string out(utf8.size(), '\0');
    char* to = out.data();
    unsigned before = 0;
    for (const char c : utf8) {
        // The second byte of a character replaces the first, which is 0xC2, or 0xC3 for 64 more.
        const unsigned second = is_second(c);
        to -= second;
        *to++ = static_cast<char>(static_cast<unsigned char>(c) + ((before & second) << 6U));
        before = static_cast<unsigned char>(c);
    }
    out.resize(static_cast<std::size_t>(to - out.data()));
    return out;
}

}  // namespace penstock::format
