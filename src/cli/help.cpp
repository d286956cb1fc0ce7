// SPDX-License-Identifier: Apache-2.0
#include "cli/help.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

namespace penstock::cli {

namespace {

constexpr std::size_t kOptionColumns = 28;

/// Words of the range of an option's validator, "FLOAT in [0.1 - 3600]": "0.1 to 3600". Empty
/// without one.
std::string range_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    const std::size_t open = type.find(" in [");
    const std::size_t dash = type.find(" - ", open);
    if (open == std::string::npos || dash == std::string::npos || type.back() != ']') {
        return "";
    }
    const std::string_view all = type;
    const std::size_t low = open + 5;
    const std::string_view high = all.substr(dash + 3);
    return fmt::format("{} to {}", all.substr(low, dash - low), high.substr(0, high.size() - 1));
}

}  // namespace

HelpFormatter::HelpFormatter() {
    column_width(kOptionColumns);
}

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool positional) const {
    // Without the value that a flag sets, which CLI11 puts in braces behind its name.
    const std::string name = CLI::Formatter::make_option_name(option, positional);
    return name.substr(0, name.find('{'));
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
    if (option->get_type_size() == 0) {
        return "";  // a flag
    }
    const std::string type = option->get_type_name();
    const bool many = option->get_expected_max() == CLI::detail::expected_max_vector_size;
    return fmt::format(" {}{}", type.substr(0, type.find(':')), many ? " ..." : "");
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
    std::vector<std::string> more;
    if (option->get_required() && !option->get_positional()) {
        more.emplace_back("required");
    }
    if (const std::string range = range_of(*option); !range.empty()) {
        more.push_back(range);
    }
    if (const std::string value = option->get_default_str(); !value.empty()) {
        more.push_back("default: " + value);
    }
    std::string text = option->get_description();
    if (more.empty()) {
        return text;
    }
    // One pair of brackets: a description may end with its own default.
    if (const std::size_t own = text.rfind("(default: ");
        own != std::string::npos && text.back() == ')') {
        return text.insert(own + 1, fmt::format("{}; ", fmt::join(more, "; ")));
    }
    return fmt::format("{} ({})", text, fmt::join(more, "; "));
}

}  // namespace penstock::cli
