// SPDX-License-Identifier: Apache-2.0
// Sizes, rates and times in words: every option of every command takes the words of the table.
#include "support/amounts.hpp"

#include "cli/command_line.hpp"
#include "cli/program.hpp"
#include "plan/amount.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace penstock::cli {
namespace {

using testing::HasSubstr;

// "SIZE" of an option that shows as --size SIZE.
std::string type_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    return type.substr(0, type.find(':'));
}

void for_each_option(CLI::App& app, const std::string& name,
                     const std::function<void(const std::string&, CLI::Option&)>& call) {
    for (CLI::Option* option : app.get_options()) {
        call(name + " " + option->get_name(), *option);
    }
    for (CLI::App* one : app.get_subcommands([](CLI::App*) { return true; })) {
        for_each_option(*one, name + " " + one->get_name(), call);
    }
}

std::optional<double> wanted(const test::AmountRow& row, const std::string& type) {
    if (type == "SIZE") {
        return row.size ? std::optional(static_cast<double>(*row.size)) : std::nullopt;
    }
    return type == "RATE" ? row.rate : row.time;
}

bool is_converted(CLI::Option& option) {
    try {
        return option.get_validator("") != nullptr;
    } catch (const CLI::OptionNotFound&) {
        return false;
    }
}

// The number that the option's variable gets; a text where the word is refused.
std::string taken(CLI::Option& option, const std::string& word, double& number) {
    option.clear();
    option.add_result(word);
    try {
        const std::vector<std::string> found = option.reduced_results();
        number = found.size() == 1 ? std::stod(found[0]) : -1;
        return {};
    } catch (const CLI::Error& error) {
        return error.what();
    }
}

TEST(AmountsCli, EveryOptionTakesTheWordsOfTheTable) {
    std::map<std::string, int> options;
    CommandLine line;
    const std::vector<test::AmountRow> rows = test::amount_rows();
    for_each_option(line.app, "penstock", [&](const std::string& name, CLI::Option& option) {
        const std::string type = type_of(option);
        const bool question = name.starts_with("penstock plan ");
        if (type != "SIZE" && type != "RATE" && type != "TIME") {
            return;
        }
        if (question && !is_converted(option)) {
            ++options["plan"];  // given on as it is: tests/plan/amount_test.cpp
            return;
        }
        ++options[type];
        for (const test::AmountRow& row : rows) {
            double number = 0;
            const std::string refused = taken(option, row.word, number);
            const std::optional<double> value = wanted(row, type);
            // The range of the option is its own.
            const bool outside = refused.find("this is") == std::string::npos &&
                                 refused.find("such as") == std::string::npos;
            if (!value) {
                EXPECT_THAT(refused, HasSubstr("got '")) << name << " '" << row.word << "'";
                EXPECT_THAT(refused, HasSubstr("; expected ")) << name << " '" << row.word << "'";
            } else if (refused.empty()) {
                EXPECT_DOUBLE_EQ(number, value.value_or(-1)) << name << " '" << row.word << "'";
            } else {
                EXPECT_TRUE(outside) << refused;
            }
        }
    });
    EXPECT_GE(options["SIZE"], 12);
    EXPECT_GE(options["RATE"], 2);
    EXPECT_GE(options["TIME"], 7);
    EXPECT_GE(options["plan"], 40);
}

// The same by their help: an option with another type name would escape the test above.
TEST(AmountsCli, NoOptionHasATypeNameOfItsOwnForThem) {
    CommandLine line;
    const std::set<std::string> known{
        "SIZE",  "RATE", "TIME",    "N",    "NUMBER",  "SHARE",    "NAME",      "FILE",   "PATH",
        "KIND",  "HOW",  "GPU",     "PEER", "PERCENT", "FEATURES", "NAME=FILE", "FOLDER", "TYPE",
        "TRACE", "ROWS", "PATTERN", "A",    "B",       "SOURCE",   "TARGET",    ""};
    for_each_option(line.app, "penstock", [&](const std::string& name, CLI::Option& option) {
        if (option.get_type_size() != 0) {
            EXPECT_TRUE(known.contains(type_of(option))) << name << " " << type_of(option);
        }
    });
}

TEST(AmountsCli, ARefusalNamesTheOption) {
    const Outcome size = run_cli({"bench", ".", "--size", "5GB/s"});
    EXPECT_EQ(size.status, 2);
    EXPECT_THAT(size.err, HasSubstr("--size: got '5GB/s'; expected bytes, such as 4096"));
    EXPECT_THAT(size.err, HasSubstr("this is a rate and no size; 1 MiB or more"));
    const Outcome rate = run_cli({"weights", "plan", ".", "--memory", "1G", "--rate", "5Gb/s"});
    EXPECT_THAT(rate.err, HasSubstr("'Gb' could be bits or bytes: write bit or B"));
    const Outcome asked = run_cli({"plan", "stream", "--model", "8b", "--rate", "5Gb/s"});
    EXPECT_THAT(asked.err, HasSubstr("'Gb' could be bits or bytes: write bit or B"));
    const Outcome time = run_cli({"tune", ".", "--seconds", "5m"});
    EXPECT_THAT(time.err, HasSubstr("write min for minutes; 5 to 3600 seconds"));
}

}  // namespace
}  // namespace penstock::cli
