// SPDX-License-Identifier: Apache-2.0
#include "base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>

namespace penstock::base {

namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr double kKi = 1024.0;
constexpr std::array<Unit, 17> kUnits{{
    {"", 1},
    {"b", 1},
    {"k", kKi},
    {"m", kKi* kKi},
    {"g", kKi* kKi* kKi},
    {"t", kKi* kKi* kKi* kKi},
    {"kib", kKi},
    {"mib", kKi* kKi},
    {"gib", kKi* kKi* kKi},
    {"tib", kKi* kKi* kKi* kKi},
    {"kb", 1e3},
    {"mb", 1e6},
    {"gb", 1e9},
    {"tb", 1e12},
    {"ki", kKi},
    {"mi", kKi* kKi},
    {"gi", kKi* kKi* kKi},
}};

std::string lower(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c != ' ') {
            out += (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
        }
    }
    return out;
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
    const std::string plain = lower(text);
    const std::size_t digits = plain.find_first_not_of("0123456789.");
    const std::string number = plain.substr(0, digits);
    const std::string unit = digits == std::string::npos ? "" : plain.substr(digits);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (!number.empty() && *end == '\0') {
        for (const Unit& known : kUnits) {
            const double bytes = value * known.factor;
            if (known.name == unit && bytes < 9.2e18 && bytes == std::floor(bytes)) {
                return static_cast<std::uint64_t>(bytes);
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
