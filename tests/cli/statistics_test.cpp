// SPDX-License-Identifier: Apache-2.0
#include "cli/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace penstock::cli {
namespace {

TEST(StatisticsTest, MedianOfOddAndEvenCounts) {
    EXPECT_DOUBLE_EQ(median({5}), 5);
    EXPECT_DOUBLE_EQ(median({9, 1, 5}), 5);
    EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(StatisticsTest, HalfRangeIsAShareOfTheMedian) {
    EXPECT_DOUBLE_EQ(half_range({100, 90, 130}), 0.2);
    EXPECT_DOUBLE_EQ(half_range({7, 7}), 0);
}

TEST(StatisticsTest, TheIntervalIsOfLogarithms) {
    // Logarithms -a and a: mean 0, deviation a * sqrt(2), half = 12.706 * a.
    const RatioInterval interval = ratio_interval({0.5, 2});
    EXPECT_NEAR(interval.mean, 1, 1e-12);
    EXPECT_NEAR(std::log(interval.high), 12.706 * std::log(2), 1e-9);
    EXPECT_NEAR(interval.low * interval.high, 1, 1e-9);
    EXPECT_DOUBLE_EQ(interval.min, 0.5);
    EXPECT_DOUBLE_EQ(interval.max, 2);
}

TEST(StatisticsTest, OneRatioSaysNothingOfItsInterval) {
    const RatioInterval interval = ratio_interval({1.5});
    EXPECT_DOUBLE_EQ(interval.mean, 1.5);
    EXPECT_EQ(interval.low, 0);
    EXPECT_EQ(interval.high, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace penstock::cli
