// SPDX-License-Identifier: Apache-2.0
// How --help shows an option: `--depth N ...`, and its range and default behind what it does.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace penstock::cli {

class HelpFormatter : public CLI::Formatter {
public:
    HelpFormatter();

    std::string make_option_name(const CLI::Option* option, bool positional) const override;
    std::string make_option_opts(const CLI::Option* option) const override;
    std::string make_option_desc(const CLI::Option* option) const override;
};

}  // namespace penstock::cli
