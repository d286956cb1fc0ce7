// SPDX-License-Identifier: Apache-2.0
#include "plan/amount.hpp"

#include "base/text/units.hpp"
#include "support/amounts.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::plan {
namespace {

using testing::HasSubstr;

double parsed(const std::string& text, Amount amount) {
    return parse_amount("train", "it", text, amount);
}

std::string refused(const std::string& text, Amount amount) {
    try {
        const double value = parsed(text, amount);
        return "taken as " + std::to_string(value);
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        return error.what();
    }
}

TEST(PlanAmounts, EachKindHasItsUnits) {
    const std::vector<std::tuple<std::string, Amount, double>> rows{
        {"4096", Amount::kBytes, 4096},        {"150KB", Amount::kBytes, 150e3},
        {"150 kB", Amount::kBytes, 150e3},     {"0.29GB", Amount::kBytes, 290e6},
        {"2450GB", Amount::kBytes, 2450e9},    {"8GiB", Amount::kBytes, 8589934592.0},
        {"6.8GB/s", Amount::kRate, 6.8e9},     {"2GiB/s", Amount::kRate, 2147483648.0},
        {"100Gbit/s", Amount::kRate, 12.5e9},  {"300", Amount::kSeconds, 300},
        {"20ms", Amount::kSeconds, 0.02},      {"5min", Amount::kSeconds, 300},
        {"2h", Amount::kSeconds, 7200},        {"1d", Amount::kSeconds, 86400},
        {"175B", Amount::kParameters, 175e9},  {"0.6B", Amount::kParameters, 600e6},
        {"1.5T", Amount::kParameters, 1.5e12}, {"90%", Amount::kShare, 0.9},
        {"0.9", Amount::kShare, 0.9},          {"1e3", Amount::kCount, 1000},
    };
    for (const auto& [text, amount, value] : rows) {
        EXPECT_DOUBLE_EQ(parsed(text, amount), value) << text;
    }
}

TEST(PlanAmounts, ARefusalSaysWhatCouldBeMeant) {
    EXPECT_THAT(refused("5Gb/s", Amount::kRate), HasSubstr("'Gb' could be bits or bytes"));
    EXPECT_THAT(refused("5GB/s", Amount::kBytes), HasSubstr("this is a rate and no size"));
    EXPECT_THAT(refused("8GB", Amount::kCount), HasSubstr("this is a number and no size"));
    EXPECT_THAT(refused("5m", Amount::kSeconds), HasSubstr("write min for minutes"));
}

bool is_amount(Amount amount) {
    return amount == Amount::kBytes || amount == Amount::kRate || amount == Amount::kSeconds;
}

std::optional<double> wanted_of(const test::AmountRow& row, Amount amount) {
    if (amount == Amount::kBytes) {
        return row.size ? std::optional(static_cast<double>(*row.size)) : std::nullopt;
    }
    return amount == Amount::kRate ? row.rate : row.time;
}

// The options of all questions, as the library lists them. An answer may refuse a number too: it
// has to be the same for the word and for its plain number.
TEST(PlanAmounts, EveryOptionTakesTheWordsOfTheTable) {
    const auto answer = [](const std::string& verb, const std::string& name,
                           const std::string& word) -> std::string {
        try {
            return json_of(ask(verb, {{name, word}}));
        } catch (const Error& error) {
            return error.what();
        }
    };
    std::size_t options = 0;
    for (const Verb& verb : verbs()) {
        for (const OptionInfo& option : verb.options) {
            if (!is_amount(option.amount)) {
                continue;
            }
            ++options;
            for (const test::AmountRow& row : test::amount_rows()) {
                const std::optional<double> wanted = wanted_of(row, option.amount);
                const bool plain = base::is_plain_number(row.word);
                const std::string found = answer(verb.name, option.name, row.word);
                const std::string begin = fmt::format("plan {}: {}: got ", verb.name, option.name);
                if (wanted) {
                    EXPECT_EQ(found,
                              answer(verb.name, option.name, fmt::format("{}", wanted.value_or(0))))
                        << verb.name << " " << option.name << " '" << row.word << "'";
                } else if (!plain) {  // a mean of bytes may have a fraction
                    EXPECT_THAT(found, HasSubstr(begin)) << row.word;
                    EXPECT_THAT(found, HasSubstr("; expected ")) << row.word;
                }
            }
        }
    }
    EXPECT_GE(options, 40U);
}

TEST(PlanAmounts, WhatIsNoNumberIsRefused) {
    for (const std::string text : {"", "GB", "nan", "inf", "1e999", "--1", "0x10", "1,5", "5 5"}) {
        for (const Amount amount : {Amount::kCount, Amount::kNumber, Amount::kShare, Amount::kBytes,
                                    Amount::kRate, Amount::kSeconds}) {
            EXPECT_THAT(refused(text, amount), HasSubstr("plan train: it: got '")) << text;
        }
    }
    EXPECT_THAT(refused("\033[31m", Amount::kBytes), HasSubstr("\\x1b"));
}

TEST(PlanAmounts, LimitsAreThoseOfTheKind) {
    const double inf = std::numeric_limits<double>::infinity();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<std::pair<Amount, double>> wrong{
        {Amount::kCount, 0},      {Amount::kCount, -1},    {Amount::kCount, 1.5},
        {Amount::kCount, 1e17},   {Amount::kCount, nan},   {Amount::kShare, 1.01},
        {Amount::kShare, 0},      {Amount::kBytes, -1},    {Amount::kBytes, inf},
        {Amount::kSeconds, 1e31}, {Amount::kNumber, -inf}, {Amount::kRate, nan},
    };
    for (const auto& [amount, value] : wrong) {
        EXPECT_THROW(check_amount("train", "it", value, amount), Error) << value;
    }
    EXPECT_NO_THROW(check_amount("mix", "start", 0, Amount::kSeconds, true));
    EXPECT_THROW(check_amount("mix", "start", 0, Amount::kSeconds), Error);
}

TEST(PlanAmounts, TextsHaveFourDigitsAndBothBases) {
    EXPECT_EQ(shown(6.0966e9, "B/s"), "6.097 GB/s (5.678 GiB/s)");
    EXPECT_EQ(shown(906, "B"), "906 B");
    EXPECT_EQ(shown(999.96e6, "B"), "1 GB (953.6 MiB)");
    EXPECT_EQ(shown(56'600, "samples/s"), "56,600 samples/s");
    EXPECT_EQ(shown(0.9, "share"), "90 %");
    EXPECT_EQ(shown(8, ""), "8");
    EXPECT_EQ(shown(7200, "s"), "2 h");
    EXPECT_EQ(shown(0.00551, "s"), "5.51 ms");
    EXPECT_EQ(number_text(1'183'035'102'480.0), "1,183,035,102,480");
    EXPECT_EQ(number_text(-1234567.5), "-1,234,568");
}

}  // namespace
}  // namespace penstock::plan
