// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"

#include "base/align.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::base {
namespace {

using ::testing::HasSubstr;

TEST(Units, SizesInWords) {
    const std::vector<std::pair<std::string, std::uint64_t>> words{
        {"0", 0},
        {"4096", 4096},
        {"4096b", 4096},
        {"64k", 64 * kKiB},
        {"64K", 64 * kKiB},
        {"64KiB", 64 * kKiB},
        {"64ki", 64 * kKiB},
        {"64kB", 64'000},
        {"1M", kMiB},
        {"400M", 400 * kMiB},
        {"2MB", 2'000'000},
        {"1.5GiB", 3 * kGiB / 2},
        {"1.5 GiB", 3 * kGiB / 2},
        {" 16 MiB ", 16 * kMiB},
        {"0.5k", 512},
        {"4GB", 4'000'000'000},
        {"4G", 4 * kGiB},
        {"1TiB", 1024 * kGiB},
        {"1Ti", 1024 * kGiB},
        {"1t", 1024 * kGiB},
        {"2TB", 2'000'000'000'000},
        // Exact, also where a double is not.
        {"9007199254740993", 9007199254740993},
        {"9223372036854775807", 9223372036854775807},
    };
    for (const auto& [text, bytes] : words) {
        const auto read = parse_bytes(text);
        ASSERT_TRUE(read) << text;
        EXPECT_EQ(*read, bytes) << text;
    }
}

TEST(Units, WhatIsNoSizeIsRefused) {
    for (const char* text : {"",
                             " ",
                             ".",
                             "k",
                             "KiB",
                             "-1",
                             "+1",
                             "1.5",
                             "0.3k",
                             "1..5k",
                             "1.5.1k",
                             "0x10",
                             "1e3",
                             "1,5GiB",
                             "4 cats",
                             "16Mi b",
                             "1 6MiB",
                             "1. 5 GiB",
                             "1 2",
                             "nan",
                             "inf",
                             "9223372036854775808",
                             "18446744073709551616",
                             "8388608TiB",
                             "9999999999999999999999",
                             "9.3e18",
                             "99999999999.5GiB"}) {
        const auto read = parse_bytes(text);
        ASSERT_FALSE(read) << text << " is " << *read;
        EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(read.error().message, HasSubstr("'" + std::string(text) + "' is not a size"));
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
