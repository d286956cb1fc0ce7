// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace penstock::cli {

/// An option's number between two; CLI::Range would let "nan" through.
[[nodiscard]] inline CLI::Validator number_from(double least, double most) {
    const std::string allowed = fmt::format("{:g} to {:g}", least, most);
    return {[=](const std::string& word) {
                char* end = nullptr;
                const double number = std::strtod(word.c_str(), &end);
                const bool inside = *end == '\0' && number >= least && number <= most;
                return inside ? std::string() : fmt::format("got '{}'; expected {}", word, allowed);
            },
            "FLOAT in [" + fmt::format("{:g} - {:g}", least, most) + "]"};
}

/// Reads a decimal number, or a hexadecimal one after 0x; nothing for a sign, a space or a leading
/// 0, of which CLI11 makes other numbers than were meant.
[[nodiscard]] inline std::optional<std::uint64_t> whole_number(std::string_view word) {
    const bool hexadecimal = word.starts_with("0x");
    const std::string_view digits = word.substr(hexadecimal ? 2 : 0);
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number,
                                              hexadecimal ? 16 : 10);
    const bool whole = error == std::errc() && end == digits.data() + digits.size() &&
                       (hexadecimal || digits.size() == 1 || !digits.starts_with('0'));
    return whole ? std::optional(number) : std::nullopt;
}

/// An option's whole number between two; CLI11 alone makes 2^64 - 1 of "-1".
[[nodiscard]] inline CLI::Validator whole_from(std::uint64_t least,
                                               std::uint64_t most = UINT64_MAX) {
    const std::string allowed = most == UINT64_MAX ? fmt::format("{} or more", least)
                                                   : fmt::format("{} to {}", least, most);
    return {[=](const std::string& word) {
                const std::optional<std::uint64_t> number = whole_number(word);
                return number && *number >= least && *number <= most
                           ? std::string()
                           : fmt::format("got '{}'; expected a whole number, {}", word, allowed);
            },
            ""};
}

}  // namespace penstock::cli
