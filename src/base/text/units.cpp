// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace penstock::base {

namespace {

__extension__ typedef unsigned __int128 Uint128;  // NOLINT(modernize-use-using)

constexpr std::uint64_t kLimit = std::uint64_t{1} << 63;
constexpr std::string_view kPrefixes = "kmgtpe";

struct Unit {
    std::string_view name;
    double factor;
};

constexpr std::array<Unit, 9> kTimeUnits{{{"", 1},
                                          {"s", 1},
                                          {"us", 1e-6},
                                          {"ms", 1e-3},
                                          {"min", 60},
                                          {"h", 3600},
                                          {"d", 86400},
                                          {"days", 86400},
                                          {"weeks", 604800}}};
constexpr std::array<Unit, 4> kPeriods{{{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}}};

// A number, and the unit behind it.
struct Amount {
    std::string_view number;
    std::string_view unit;
};

constexpr bool is_digit(char c) {
    return c >= '0' && c <= '9';
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

// Finds the end of the digits, and of an exponent of ten. An e without digits is a unit.
std::optional<Amount> amount_of(std::string_view text) {
    text = without_spaces_around(text);
    std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string_view digits = text.substr(0, end);
    if (std::none_of(digits.begin(), digits.end(), is_digit) ||
        std::count(digits.begin(), digits.end(), '.') > 1) {
        return std::nullopt;
    }
    if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
        const std::size_t sign = text.substr(end + 1).find_first_of("+-") == 0 ? 1 : 0;
        const std::size_t power = end + 1 + sign;
        const std::size_t behind =
            std::min(text.find_first_not_of("0123456789", power), text.size());
        end = power < behind ? behind : end;
    }
    return Amount{text.substr(0, end), without_spaces_around(text.substr(end))};
}

// Not strtod(), which depends on the locale.
std::optional<double> value_of(std::string_view number) {
    double value = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
    return read.ec == std::errc() ? std::optional(value) : std::nullopt;
}

// The bytes of "", "b", "k", "ki", "kb", "kib" ...
std::optional<std::uint64_t> bytes_of_unit(std::string_view unit) {
    const bool named = unit.ends_with('b');
    unit.remove_suffix(named ? 1 : 0);
    if (unit.empty()) {
        return 1;
    }
    const std::size_t prefix = kPrefixes.find(unit[0]);
    const std::string_view rest = unit.substr(1);
    if (prefix == std::string_view::npos || (!rest.empty() && rest != "i")) {
        return std::nullopt;
    }
    const std::uint64_t base = named && rest.empty() ? 1000 : 1024;
    std::uint64_t bytes = base;
    for (std::size_t i = 0; i < prefix; ++i) {
        bytes *= base;
    }
    return bytes;
}

// number x factor, exactly; rounded down where the factor is not 1. Nothing if it is too large, or
// if no whole byte is left of it.
std::optional<std::uint64_t> times(std::string_view number, std::uint64_t factor) {
    constexpr std::uint64_t kFull = std::numeric_limits<std::uint64_t>::max() / 10 - 1;
    constexpr int kPowerMax = 10000;
    std::uint64_t digits = 0;
    int power = 0;
    bool exact = true;
    bool fraction = false;
    std::size_t at = 0;
    for (; at < number.size() && (is_digit(number[at]) || number[at] == '.'); ++at) {
        const auto digit = static_cast<unsigned>(number[at] - '0');
        if (number[at] == '.') {
            fraction = true;
        } else if (digits > kFull) {
            exact = exact && digit == 0;
            power += fraction ? 0 : 1;
        } else {
            digits = digits * 10 + digit;
            power -= fraction ? 1 : 0;
        }
    }
    if (at < number.size()) {
        const std::string_view exponent = number.substr(number[at + 1] == '+' ? at + 2 : at + 1);
        int tens = 0;
        const auto read = std::from_chars(exponent.data(), exponent.data() + exponent.size(), tens);
        if (read.ec != std::errc() || tens > kPowerMax || tens < -kPowerMax) {
            return std::nullopt;
        }
        power += tens;
    }
    Uint128 bytes = static_cast<Uint128>(digits) * factor;
    for (; power > 0 && bytes != 0 && bytes < kLimit; --power) {
        bytes *= 10;
    }
    for (; power < 0 && bytes != 0; ++power) {
        exact = exact && bytes % 10 == 0;
        bytes /= 10;
    }
    const bool lost = digits != 0 && bytes == 0;
    if (bytes >= kLimit || lost || (factor == 1 && !exact)) {
        return std::nullopt;
    }
    return static_cast<std::uint64_t>(bytes);
}

template <std::size_t N>
std::optional<double> factor_of(std::string_view name, const std::array<Unit, N>& units) {
    for (const Unit& unit : units) {
        if (unit.name == name) {
            return unit.factor;
        }
    }
    return std::nullopt;
}

// The unit of a rate: so many bytes in so many seconds.
struct RateUnit {
    double bytes = 0;
    double seconds = 1;
};

// Reads "GB/s", "Gbit", "k/min" ...
std::optional<RateUnit> rate_of_unit(std::string_view unit) {
    RateUnit rate;
    if (const std::size_t slash = unit.find('/'); slash != std::string_view::npos) {
        const auto period = factor_of(unit.substr(slash + 1), kPeriods);
        if (!period) {
            return std::nullopt;
        }
        rate.seconds = *period;
        unit = without_spaces_around(unit.substr(0, slash));
    }
    const std::string plain = lower(unit);
    std::optional<std::uint64_t> bytes;
    if (plain.ends_with("bit")) {
        const std::string prefix = plain.substr(0, plain.size() - 3);
        bytes = prefix.ends_with('i') ? std::nullopt : bytes_of_unit(prefix + "b");  // decimal
        rate.seconds *= 8;
    } else if (!unit.ends_with('b')) {
        bytes = bytes_of_unit(plain);
    }
    rate.bytes = static_cast<double>(bytes.value_or(0));
    return bytes ? std::optional(rate) : std::nullopt;
}

Failure refused(std::string_view forms, std::string_view why) {
    return fail(
        error(ErrorCode::kInvalidArgument, "amount", fmt::format("expected {}{}", forms, why)));
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
    const auto amount = amount_of(text);
    if (!amount) {
        return refused(kSizeForms, "");
    }
    const auto unit = bytes_of_unit(lower(amount->unit));
    if (!unit) {
        const bool rate = rate_of_unit(amount->unit).has_value();
        return refused(kSizeForms, rate ? "; this is a rate and no size" : "");
    }
    const auto bytes = times(amount->number, *unit);
    return bytes ? Result<std::uint64_t>(*bytes)
                 : refused(kSizeForms, "; a size has whole bytes, less than 2^63");
}

Result<double> parse_rate(std::string_view text) {
    const auto amount = amount_of(text);
    const auto unit = amount ? rate_of_unit(amount->unit) : std::nullopt;
    const auto value = unit ? value_of(amount->number) : std::nullopt;
    if (value) {
        return *value * unit->bytes / unit->seconds;
    }
    const std::string_view word = amount ? amount->unit.substr(0, amount->unit.find('/')) : "";
    const bool bits = word.ends_with('b') && bytes_of_unit(lower(word));
    return refused(kRateForms,
                   bits ? fmt::format("; '{}' could be bits or bytes: write bit or B", word) : "");
}

Result<double> parse_seconds(std::string_view text) {
    const auto amount = amount_of(text);
    const auto unit = amount ? factor_of(amount->unit, kTimeUnits) : std::nullopt;
    const auto value = unit ? value_of(amount->number) : std::nullopt;
    if (value) {
        return *value * *unit;
    }
    return refused(kTimeForms, amount && amount->unit == "m" ? "; write min for minutes" : "");
}

bool is_plain_number(std::string_view text) {
    const auto amount = amount_of(text);
    return amount && amount->unit.empty();
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
