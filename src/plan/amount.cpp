// SPDX-License-Identifier: Apache-2.0
#include "plan/amount.hpp"

#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "format/fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

namespace penstock::plan {

namespace {

// Beyond it a double is no exact whole number, and no plan is one of this world.
constexpr double kCountMax = 9007199254740992.0;  // 2^53
constexpr double kAmountMax = 1e30;

struct Suffix {
    std::string_view text;
    double factor;
};

constexpr std::array<Suffix, 5> kParameterSuffixes{
    {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
constexpr std::array<Suffix, 2> kShareSuffixes{{{"", 1}, {"%", 0.01}}};
constexpr std::array<Suffix, 1> kNoSuffix{{{"", 1}}};

constexpr std::string_view expected(Amount amount, bool zero) {
    switch (amount) {
        case Amount::kCount:
            return zero ? "a whole number from 0 on" : "a whole number from 1 on";
        case Amount::kNumber:
            return zero ? "a number from 0 on" : "a number above 0";
        case Amount::kShare:
            return zero ? "a share from 0 to 1, such as 0.9 or 90%"
                        : "a share above 0 and at most 1, such as 0.9 or 90%";
        case Amount::kBytes:
            return base::kSizeForms;
        case Amount::kRate:
            return base::kRateForms;
        case Amount::kSeconds:
            return base::kTimeForms;
        case Amount::kParameters:
            return "a number of parameters, such as 70B (1e9 each), 350M or 1.5T";
        case Amount::kText:
        case Amount::kFlag:
        case Amount::kDocument:
            break;
    }
    return "a word";
}

std::optional<double> factor_of(std::string_view suffix, std::span<const Suffix> known) {
    for (const Suffix& one : known) {
        if (one.text == suffix) {
            return one.factor;
        }
    }
    return std::nullopt;
}

std::optional<double> factor_of(std::string_view suffix, Amount amount) {
    switch (amount) {
        case Amount::kParameters:
            return factor_of(suffix, kParameterSuffixes);
        case Amount::kShare:
            return factor_of(suffix, kShareSuffixes);
        case Amount::kBytes:
        case Amount::kRate:
        case Amount::kSeconds:
        case Amount::kCount:
        case Amount::kNumber:
        case Amount::kText:
        case Amount::kFlag:
        case Amount::kDocument:
            break;
    }
    return factor_of(suffix, kNoSuffix);
}

// A word with a unit, by the rule of all commands. Nothing for an amount that has none.
std::optional<base::Result<double>> with_unit(std::string_view text, Amount amount) {
    if (amount == Amount::kBytes) {
        const auto bytes = base::parse_bytes(text);
        return bytes ? base::Result<double>(static_cast<double>(*bytes))
                     : base::Result<double>(base::fail(bytes.error()));
    }
    if (amount == Amount::kRate) {
        return base::parse_rate(text);
    }
    return amount == Amount::kSeconds ? std::optional(base::parse_seconds(text)) : std::nullopt;
}

std::string with_separators(double whole) {
    std::string digits = fmt::format("{:.0f}", whole);
    const std::size_t first = digits.starts_with('-') ? 1 : 0;
    for (std::size_t at = digits.size(); at > first + 3;) {
        at -= 3;
        digits.insert(at, 1, ',');
    }
    return digits;
}

// "6.097": four digits, without zeros at the end of a fraction.
std::string four_digits(double value) {
    const double size = std::abs(value);
    if (value == 0) {
        return "0";
    }
    if (size < 1e-4 || size >= 1e15) {
        return fmt::format("{:.4g}", value);
    }
    const int whole = std::max(1, static_cast<int>(std::floor(std::log10(size))) + 1);
    if (whole >= 4) {
        return with_separators(value);
    }
    int places = 4 - whole;
    if (size < 1) {
        places = 3 - static_cast<int>(std::floor(std::log10(size)));
    }
    std::string text = fmt::format("{:.{}f}", value, places);
    while (text.ends_with('0')) {
        text.pop_back();
    }
    if (text.ends_with('.')) {
        text.pop_back();
    }
    return text;
}

std::string scaled(double value, double base, std::span<const std::string_view> names,
                   std::string_view rest) {
    std::size_t unit = 0;
    // 999.96 would be shown as 1,000.
    while (std::abs(value) >= base * 0.99995 && unit + 1 < names.size()) {
        value /= base;
        ++unit;
    }
    return fmt::format("{} {}{}", four_digits(value), names[unit], rest);
}

std::string seconds_text(double seconds) {
    const double size = std::abs(seconds);
    if (size >= 2 * 86400) {
        return fmt::format("{} days", four_digits(seconds / 86400));
    }
    if (size >= 2 * 3600) {
        return fmt::format("{} h", four_digits(seconds / 3600));
    }
    if (size >= 120) {
        return fmt::format("{} min", four_digits(seconds / 60));
    }
    if (size >= 1 || size == 0) {
        return fmt::format("{} s", four_digits(seconds));
    }
    return size >= 1e-3 ? fmt::format("{} ms", four_digits(seconds * 1e3))
                        : fmt::format("{} us", four_digits(seconds * 1e6));
}

}  // namespace

void refuse(std::string_view verb, std::string_view message) {
    const std::string operation = verb.empty() ? std::string("plan") : fmt::format("plan {}", verb);
    base::raise(base::error(ErrorCode::kInvalidArgument, operation, message));
}

void check_amount(std::string_view verb, std::string_view name, double value, Amount amount,
                  bool zero) {
    const bool count = amount == Amount::kCount || amount == Amount::kParameters;
    const double most = amount == Amount::kShare ? 1 : count ? kCountMax : kAmountMax;
    const bool fits = std::isfinite(value) && value <= most && (zero ? value >= 0 : value > 0) &&
                      (!count || value == std::floor(value));
    if (!fits) {
        const bool large = std::isfinite(value) && value > most && amount != Amount::kShare;
        refuse(verb, fmt::format("{}: got {}; expected {}{}", name, value, expected(amount, zero),
                                 large ? fmt::format(", at most {:g}", most) : ""));
    }
}

double parse_amount(std::string_view verb, std::string_view name, std::string_view text,
                    Amount amount) {
    const auto wrong = [&](std::string_view why) {
        refuse(verb, fmt::format("{}: got {}; expected {}{}", name, format::shown(text),
                                 expected(amount, false), why));
    };
    std::string_view rest = text;
    while (rest.starts_with(' ')) {
        rest.remove_prefix(1);
    }
    double number = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (parsed.ec != std::errc() || !std::isfinite(number)) {
        wrong({});
    }
    std::string_view suffix = rest.substr(static_cast<std::size_t>(parsed.ptr - rest.data()));
    while (suffix.starts_with(' ')) {
        suffix.remove_prefix(1);
    }
    while (suffix.ends_with(' ')) {
        suffix.remove_suffix(1);
    }
    if (const auto read = suffix.empty() ? std::nullopt : with_unit(text, amount)) {
        if (!*read) {
            refuse(verb,
                   fmt::format("{}: got {}; {}", name, format::shown(text), read->error().message));
        }
        return **read;
    }
    const auto factor = factor_of(suffix, amount);
    if (!factor) {
        const bool count = amount == Amount::kCount || amount == Amount::kNumber;
        wrong(count && base::parse_bytes(text) ? "; this is a number and no size" : "");
    }
    const double value = number * *factor;
    // 0.29 B is a whole number of parameters, and its product is not.
    return amount == Amount::kParameters && value < kCountMax &&
                   std::abs(value - std::round(value)) < 1e-3
               ? std::round(value)
               : value;
}

std::string number_text(double value) {
    return value == std::floor(value) && std::abs(value) < 1e15 ? with_separators(value)
                                                                : four_digits(value);
}

InTwoBases in_two_bases(double value, std::string_view unit) {
    static constexpr std::array<std::string_view, 7> kDecimal{"B",  "kB", "MB", "GB",
                                                              "TB", "PB", "EB"};
    static constexpr std::array<std::string_view, 7> kBinary{"B",   "KiB", "MiB", "GiB",
                                                             "TiB", "PiB", "EiB"};
    if (unit == "B" || unit.starts_with("B/")) {
        const std::string_view rest = unit.substr(1);
        return {scaled(value, 1000, kDecimal, rest),
                std::abs(value) < 1000 ? "" : scaled(value, 1024, kBinary, rest)};
    }
    if (unit == "s") {
        return {seconds_text(value), {}};
    }
    if (unit == "share") {
        return {fmt::format("{} %", four_digits(value * 100)), {}};
    }
    return {unit.empty() ? number_text(value) : fmt::format("{} {}", number_text(value), unit), {}};
}

std::string shown(double value, std::string_view unit) {
    const InTwoBases text = in_two_bases(value, unit);
    return text.binary.empty() ? text.decimal : fmt::format("{} ({})", text.decimal, text.binary);
}

}  // namespace penstock::plan
