// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"

#include "base/align.hpp"
#include "support/amounts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::base {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message of a refusal begins with "expected"; the word is for the caller to show.
template <typename T, typename Wanted>
void expect_same(const std::string& word, const Result<T>& read, const Wanted& wanted) {
    ASSERT_EQ(read.has_value(), wanted.has_value()) << "'" << word << "'";
    if (wanted) {
        EXPECT_DOUBLE_EQ(static_cast<double>(*read), static_cast<double>(*wanted)) << word;
    } else {
        EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(read.error().message, StartsWith("expected "));
    }
}

TEST(Units, WordsMeanWhatTheTableSays) {
    const std::vector<test::AmountRow> rows = test::amount_rows();
    EXPECT_GE(rows.size(), 80U);
    for (const test::AmountRow& row : rows) {
        expect_same(row.word, parse_bytes(row.word), row.size);
        expect_same(row.word, parse_rate(row.word), row.rate);
        expect_same(row.word, parse_seconds(row.word), row.time);
        if (row.size) {  // exact, also where a double is not
            EXPECT_EQ(parse_bytes(row.word).value_or(0), *row.size) << row.word;
        }
    }
}

TEST(Units, ARefusalSaysWhatCouldBeMeant) {
    EXPECT_THAT(parse_rate("5Gb/s").error().message, HasSubstr("'Gb' could be bits or bytes"));
    EXPECT_THAT(parse_bytes("5GB/s").error().message, HasSubstr("this is a rate and no size"));
    EXPECT_THAT(parse_bytes("8Gbit").error().message, HasSubstr("this is a rate and no size"));
    EXPECT_THAT(parse_bytes("8EiB").error().message, HasSubstr("less than 2^63"));
    EXPECT_THAT(parse_bytes("1.5").error().message, HasSubstr("whole bytes"));
    EXPECT_THAT(parse_seconds("5m").error().message, HasSubstr("write min for minutes"));
}

// Numbers that no type holds, and exponents that would take long.
TEST(Units, ManyDigitsAreNoTrouble) {
    const std::string zeros(10'000, '0');
    EXPECT_EQ(parse_bytes(zeros + "7").value_or(0), 7U);
    EXPECT_EQ(parse_bytes("1." + zeros + "1k").value_or(0), 1024U);
    EXPECT_EQ(parse_bytes("0e9999").value_or(1), 0U);
    for (const std::string& word : {"7" + zeros, std::string("1e9999999999999"), "1e" + zeros + "9",
                                    std::string("1e-9999"), std::string("1e-99999999999")}) {
        EXPECT_EQ(parse_bytes(word).has_value(), word == "1e" + zeros + "9") << word.size();
    }
}

TEST(Units, ALocaleDoesNotChangeWhatASizeIs) {
    const std::string before = std::setlocale(LC_NUMERIC, nullptr);
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"}) {
        if (std::setlocale(LC_NUMERIC, name) != nullptr) {
            break;
        }
    }
    EXPECT_EQ(parse_bytes("1.5k").value_or(0), 1536U);
    std::setlocale(LC_NUMERIC, before.c_str());
}

TEST(Units, ThreeDigitsForPeople) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(4096), "4 KiB");
    EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
    EXPECT_EQ(format_bytes(5000 * kGiB), "4.88 TiB");
    EXPECT_EQ(format_rate(7.02e9), "7.02 GB/s");
    EXPECT_EQ(format_rate(999), "999 B/s");
    EXPECT_EQ(format_rate(2.5e13), "25000 GB/s");
    EXPECT_EQ(format_duration(85), "85 ns");
    EXPECT_EQ(format_duration(85'000), "85 us");
    EXPECT_EQ(format_duration(1'210'000), "1.21 ms");
    EXPECT_EQ(format_duration(3'400'000'000), "3.40 s");
}

// A printed size is parsed to the same, within its three digits.
TEST(Units, WhatIsPrintedIsRead) {
    for (std::uint64_t bytes = 1; bytes < kGiB * 1024; bytes *= 2) {
        EXPECT_EQ(parse_bytes(format_bytes(bytes)).value_or(0), bytes) << format_bytes(bytes);
    }
}

}  // namespace
}  // namespace penstock::base
