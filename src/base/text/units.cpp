// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"

#include "base/align.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

namespace penstock::base {

namespace {

struct Unit {
    std::string_view name;
    std::uint64_t factor;
};

constexpr std::uint64_t kTiB = 1024 * kGiB;
constexpr std::uint64_t kLimit = std::uint64_t{1} << 63;
constexpr std::array<Unit, 18> kUnits{{
    {"", 1},
    {"b", 1},
    {"k", kKiB},
    {"m", kMiB},
    {"g", kGiB},
    {"t", kTiB},
    {"kib", kKiB},
    {"mib", kMiB},
    {"gib", kGiB},
    {"tib", kTiB},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"ki", kKiB},
    {"mi", kMiB},
    {"gi", kGiB},
    {"ti", kTiB},
}};

// Whole numbers are exact; a fraction must make whole bytes. Not strtod(), which depends on the
// locale.
std::optional<std::uint64_t> times(std::string_view number, std::uint64_t factor) {
    const char* const end = number.data() + number.size();
    if (number.find('.') == std::string_view::npos) {
        std::uint64_t whole = 0;
        const auto read = std::from_chars(number.data(), end, whole);
        const auto bytes = read.ec == std::errc() ? checked_multiply(whole, factor) : std::nullopt;
        return bytes && *bytes < kLimit && read.ptr == end ? bytes : std::nullopt;
    }
    double value = 0;
    const auto read = std::from_chars(number.data(), end, value);
    const double bytes = value * static_cast<double>(factor);
    if (read.ec != std::errc() || read.ptr != end || bytes != std::floor(bytes) ||
        bytes >= static_cast<double>(kLimit)) {
        return std::nullopt;
    }
    return static_cast<std::uint64_t>(bytes);
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        c = (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return out;
}

std::string_view without_spaces_around(std::string_view text) {
    const std::size_t first = text.find_first_not_of(' ');
    return first == std::string_view::npos
               ? std::string_view()
               : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// Three significant digits, without a trailing ".00".
std::string three_digits(double value) {
    if (value >= 100 || value == std::floor(value)) {
        return fmt::format("{:.0f}", value);
    }
    return value >= 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
    const std::string_view plain = without_spaces_around(text);
    const std::size_t digits = std::min(plain.find_first_not_of("0123456789."), plain.size());
    const std::string_view number = plain.substr(0, digits);
    const std::string unit = lower(without_spaces_around(plain.substr(digits)));
    for (const Unit& known : kUnits) {
        if (known.name == unit) {
            if (const auto bytes = times(number, known.factor)) {
                return *bytes;
            }
        }
    }
    return fail(error(ErrorCode::kInvalidArgument, "size",
                      fmt::format("'{}' is not a size; write a whole number of bytes such as 4096, "
                                  "64KiB, 1MiB, 1.5GiB (binary) or 2GB (decimal)",
                                  text)));
}

std::string format_bytes(std::uint64_t bytes) {
    constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < kNames.size()) {
        value /= 1024;
        ++unit;
    }
    return fmt::format("{} {}", three_digits(value), kNames[unit]);
}

std::string format_rate(double bytes_per_second) {
    constexpr std::array<const char*, 4> kNames{"B/s", "kB/s", "MB/s", "GB/s"};
    std::size_t unit = 0;
    while (bytes_per_second >= 1000 && unit + 1 < kNames.size()) {
        bytes_per_second /= 1000;
        ++unit;
    }
    return fmt::format("{} {}", three_digits(bytes_per_second), kNames[unit]);
}

std::string format_duration(std::int64_t nanoseconds) {
    const auto ns = static_cast<double>(nanoseconds);
    if (ns < 1e3) {
        return fmt::format("{:.0f} ns", ns);
    }
    if (ns < 1e6) {
        return fmt::format("{} us", three_digits(ns / 1e3));
    }
    if (ns < 1e9) {
        return fmt::format("{} ms", three_digits(ns / 1e6));
    }
    return fmt::format("{} s", three_digits(ns / 1e9));
}

}  // namespace penstock::base
