// SPDX-License-Identifier: Apache-2.0
#include "probe/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace penstock::probe {
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
    // Logarithms -a and a: mean 0, deviation a * sqrt(2), half = 12.7062 * a.
    const RatioInterval interval = ratio_interval({0.5, 2});
    EXPECT_NEAR(interval.mean, 1, 1e-12);
    EXPECT_NEAR(std::log(interval.high), 12.7062047 * std::log(2), 1e-6);
    EXPECT_NEAR(interval.low * interval.high, 1, 1e-9);
    EXPECT_DOUBLE_EQ(interval.min, 0.5);
    EXPECT_DOUBLE_EQ(interval.max, 2);
}

TEST(StatisticsTest, QuantilesOfStudentAreThoseOfTheTables) {
    EXPECT_NEAR(student(0.95, 1), 12.7062, 1e-4);
    EXPECT_NEAR(student(0.95, 2), 4.3027, 1e-4);
    EXPECT_NEAR(student(0.95, 3), 3.1824, 1e-4);
    EXPECT_NEAR(student(0.99, 4), 4.6041, 1e-4);
    EXPECT_NEAR(student(0.95, 10), 2.2281, 1e-4);
    EXPECT_NEAR(student(0.999, 29), 3.6594, 1e-4);
    EXPECT_NEAR(student(0.95, 1000), 1.9623, 1e-4);
}

TEST(StatisticsTest, OneRatioSaysNothingOfItsInterval) {
    const RatioInterval interval = ratio_interval({1.5});
    EXPECT_DOUBLE_EQ(interval.mean, 1.5);
    EXPECT_EQ(interval.low, 0);
    EXPECT_EQ(interval.high, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace penstock::probe
