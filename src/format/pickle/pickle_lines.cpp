// SPDX-License-Identifier: Apache-2.0
#include "format/pickle/pickle_lines.hpp"

#include "format/utf8.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::format {

namespace {

constexpr std::size_t kDigitsMax = 4300;  // of Python's int()

// Takes so many hexadecimal digits.
std::optional<std::uint32_t> hex_at(std::string_view text, std::size_t at, std::size_t digits) {
    std::uint32_t value = 0;
    if (at + digits > text.size()) {
        return std::nullopt;
    }
    const char* const end = text.data() + at + digits;
    const auto [stop, error] = std::from_chars(text.data() + at, end, value, 16);
    return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<std::string> integer_of_line(std::string_view line) {
    const bool negative = line.starts_with('-');
    line.remove_prefix(negative ? 1 : 0);
    line.remove_suffix(line.ends_with('L') ? 1 : 0);
    const bool digits =
        std::all_of(line.begin(), line.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (line.empty() || line.size() > kDigitsMax || !digits) {
        return std::nullopt;
    }
    std::vector<std::uint8_t> bytes;  // of the absolute value
    for (const char c : line) {
        std::uint32_t carry = static_cast<std::uint32_t>(c - '0');
        for (std::uint8_t& byte : bytes) {
            carry += byte * 10U;
            byte = static_cast<std::uint8_t>(carry);
            carry >>= 8U;
        }
        if (carry != 0) {
            bytes.push_back(static_cast<std::uint8_t>(carry));
        }
    }
    bytes.push_back(0);  // of the sign
    std::uint32_t carry = 1;
    for (std::uint8_t& byte : bytes) {
        if (negative) {
            carry += static_cast<std::uint8_t>(~byte);
            byte = static_cast<std::uint8_t>(carry);
            carry >>= 8U;
        }
    }
    return std::string(bytes.begin(), bytes.end());
}

std::optional<double> float_of_line(std::string_view line) {
    double value = 0;
    const char* const end = line.data() + line.size();
    const auto [stop, error] = std::from_chars(line.data(), end, value);
    return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

std::optional<std::string> string_of_line(std::string_view line) {
    if (line.size() < 2 || (line.front() != '\'' && line.front() != '"') ||
        line.back() != line.front()) {
        return std::nullopt;
    }
    constexpr std::string_view kEscapes = "\\'\"ntrabfv";
    constexpr std::string_view kMeaning = "\\'\"\n\t\r\a\b\f\v";
    line = line.substr(1, line.size() - 2);
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
        if (line[i] != '\\') {
            out += line[i];
            continue;
        }
        const char next = ++i < line.size() ? line[i] : '\0';
        if (const std::size_t known = kEscapes.find(next); known != std::string_view::npos) {
            out += kMeaning[known];
        } else if (const auto byte = next == 'x' ? hex_at(line, i + 1, 2) : std::nullopt) {
            out += static_cast<char>(*byte);
            i += 2;
        } else {
            return std::nullopt;
        }
    }
    return out;
}

std::optional<std::string> unicode_of_line(std::string_view line) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char next = line[i] == '\\' && i + 1 < line.size() ? line[i + 1] : '\0';
        const std::size_t digits = next == 'u' ? 4 : next == 'U' ? 8 : 0;
        if (digits == 0) {
            append_character(out, static_cast<unsigned char>(line[i]));
            continue;
        }
        const auto character = hex_at(line, i + 2, digits);
        if (!character || *character > 0x10FFFF) {
            return std::nullopt;
        }
        append_character(out, *character);
        i += 1 + digits;
    }
    return out;
}

}  // namespace penstock::format
