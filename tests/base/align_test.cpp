// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace penstock::base {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Align, DownUpAndWhetherItIs) {
    for (const std::uint64_t alignment : {1U, 2U, 512U, 4096U}) {
        for (const std::uint64_t x : {0U, 1U, 511U, 512U, 513U, 4095U, 4096U, 8191U}) {
            const std::uint64_t down = align_down(x, alignment);
            const std::uint64_t up = align_up(x, alignment);
            EXPECT_EQ(down % alignment, 0U);
            EXPECT_EQ(up % alignment, 0U);
            EXPECT_LE(down, x);
            EXPECT_LT(x - down, alignment);
            EXPECT_GE(up, x);
            EXPECT_LT(up - x, alignment);
            EXPECT_EQ(is_aligned(x, alignment), x % alignment == 0);
        }
    }
    EXPECT_EQ(align_down(kMax, kPageBytes), kMax - 4095);
}

TEST(Align, PowersOfTwo) {
    EXPECT_FALSE(is_power_of_two(0));
    for (unsigned bit = 0; bit < 64; ++bit) {
        const std::uint64_t power = std::uint64_t{1} << bit;
        EXPECT_TRUE(is_power_of_two(power));
        EXPECT_EQ(is_power_of_two(power + 1), bit == 0);
    }
}

TEST(Align, MemoryIsAlignedByItsAddress) {
    alignas(64) const char bytes[65] = {};
    EXPECT_TRUE(is_aligned(bytes, 64));
    EXPECT_FALSE(is_aligned(bytes + 1, 2));
}

TEST(CheckedArithmetic, SaysWhenItOverflows) {
    EXPECT_EQ(checked_add(1, 2), 3U);
    EXPECT_EQ(checked_add(kMax, 0), kMax);
    EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
    EXPECT_EQ(checked_add(kMax / 2 + 1, kMax / 2 + 1), std::nullopt);
    EXPECT_EQ(checked_multiply(3, 4), 12U);
    EXPECT_EQ(checked_multiply(kMax, 0), 0U);
    EXPECT_EQ(checked_multiply(kMax, 1), kMax);
    EXPECT_EQ(checked_multiply(std::uint64_t{1} << 32U, std::uint64_t{1} << 32U), std::nullopt);
}

}  // namespace
}  // namespace penstock::base
