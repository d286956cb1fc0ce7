// SPDX-License-Identifier: Apache-2.0
#include "cli/amount_option.hpp"

#include "base/text/units.hpp"
#include "format/fault.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace penstock::cli {

namespace {

// Replaces the word by its plain number, which CLI11 then reads. `allowed` is what inside() checks.
template <typename Parse, typename Inside>
CLI::Option* takes(CLI::Option* option, const char* type, const std::string& range, Parse parse,
                   Inside inside, const std::string& allowed, std::string_view also = {}) {
    const std::string other(also);
    const std::string more = other.empty() ? "" : ", or " + other;
    return option
        ->transform(CLI::Validator(
            [=](std::string& word) {
                if (!other.empty() && word == other) {
                    return std::string();
                }
                const auto read = parse(word);
                if (!read) {
                    return fmt::format("got {}; {}{}{}", format::shown(word), read.error().message,
                                       allowed.empty() ? "" : "; " + allowed, more);
                }
                if (!inside(*read)) {
                    return fmt::format("got {}; expected {}{}", format::shown(word), allowed, more);
                }
                word = fmt::format("{}", *read);
                return std::string();
            },
            range))
        ->type_name(type);
}

}  // namespace

CLI::Option* takes_size(CLI::Option* option, std::uint64_t least, std::uint64_t most) {
    const std::string from = base::format_bytes(least);
    const std::string allowed = most != kNoMost
                                    ? fmt::format("{} to {}", from, base::format_bytes(most))
                                : least != 0 ? fmt::format("{} or more", from)
                                             : "";
    return takes(
        option, "SIZE", "", base::parse_bytes,
        [=](std::uint64_t bytes) { return bytes >= least && bytes <= most; }, allowed);
}

CLI::Option* takes_rate(CLI::Option* option, std::string_view also) {
    return takes(
        option, "RATE", "", base::parse_rate, [](double rate) { return rate > 0; },
        "more than 0 bytes a second", also);
}

CLI::Option* takes_time(CLI::Option* option, double least, double most, std::string_view also) {
    return takes(
        option, "TIME", fmt::format("FLOAT in [{} - {}]", least, most), base::parse_seconds,
        [=](double seconds) { return seconds >= least && seconds <= most; },
        fmt::format("{} to {} seconds", least, most), also);
}

}  // namespace penstock::cli
