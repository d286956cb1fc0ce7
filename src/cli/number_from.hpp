// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

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

}  // namespace penstock::cli
