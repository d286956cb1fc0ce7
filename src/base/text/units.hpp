// SPDX-License-Identifier: Apache-2.0
// Sizes, rates and times as people write and read them: the one rule of all commands and arguments,
// in C++ and in Python. tests/base/amounts.tsv has what words mean.
//
// A number has digits, a point and an exponent of ten, and no sign. After it, with or without
// spaces, comes a unit:
//   sizes  B, and k, M, G, T, P or E: alone, with i or with iB 1024 each (as in fio), with B 1000
//          each; in either case. A size is less than 2^63 bytes, and is rounded down to whole
//          bytes; without a prefix it has to be whole.
//   rates  the same, or bit, kbit, Mbit, Gbit and Tbit, which are decimal; then /s, /min, /h, /d or
//          nothing, which is /s. A small b is refused: it could be bits or bytes.
//   times  us, ms, s, min, h, d, days or weeks; without a unit seconds.
// What is anything else is refused everywhere.
#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::base {

/// The forms, for messages.
inline constexpr std::string_view kSizeForms =
    "bytes, such as 4096, 150KB or 2.5GB (decimal), 64KiB, 8GiB or 8G (binary)";
inline constexpr std::string_view kRateForms =
    "bytes a second, such as 6.8GB/s, 2GiB/s or 100Gbit/s";
inline constexpr std::string_view kTimeForms = "a time, such as 300, 300s, 20ms, 5min, 2h or 1d";

/// Bytes; bytes a second; seconds. Error: kInvalidArgument, whose message begins with "expected",
/// and does not have the text: the caller shows it, with the name of the argument.
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view text);
[[nodiscard]] Result<double> parse_rate(std::string_view text);
[[nodiscard]] Result<double> parse_seconds(std::string_view text);

/// Whether the text is a number without a unit.
[[nodiscard]] bool is_plain_number(std::string_view text);

/// "1.50 GiB", "4 KiB", "17 B": binary units, three digits.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

/// "7.02 GB/s": decimal units, as drives are sold.
[[nodiscard]] std::string format_rate(double bytes_per_second);

/// "85 us", "1.21 ms", "3.4 s".
[[nodiscard]] std::string format_duration(std::int64_t nanoseconds);

}  // namespace penstock::base
