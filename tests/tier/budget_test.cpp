// SPDX-License-Identifier: Apache-2.0
// A budget that follows what memory is left, as arithmetic.
#include "tier/budget.hpp"

#include "base/raise.hpp"

#include <penstock/weights.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace penstock::tier {
namespace {

constexpr std::int64_t kGiB = 1 << 30;

TEST(FollowedBudget, WhatIsMissingIsGivenBackAtOnceDownToTheLeast) {
    const FollowedBudget now{.budget = 8 * kGiB, .least = 2 * kGiB, .most = 20 * kGiB};
    auto with = [&](std::int64_t spare) {
        FollowedBudget one = now;
        one.spare = spare;
        return followed_budget(one);
    };
    EXPECT_EQ(with(0), std::nullopt);
    EXPECT_EQ(with(-1), 15 * kGiB / 2);  // a sixteenth at least
    EXPECT_EQ(with(-3 * kGiB), 5 * kGiB);
    EXPECT_EQ(with(-7 * kGiB), 2 * kGiB);
    EXPECT_EQ(with(std::numeric_limits<std::int64_t>::min()), 2 * kGiB);
}

TEST(FollowedBudget, HalfOfWhatIsSpareIsTakenAtTheBeginningOfAPass) {
    FollowedBudget now{.budget = 8 * kGiB, .spare = 4 * kGiB, .least = kGiB, .most = 20 * kGiB};
    EXPECT_EQ(followed_budget(now), std::nullopt);
    now.may_grow = true;
    EXPECT_EQ(followed_budget(now), 10 * kGiB);
    now.spare = kGiB;  // a sixteenth is not worth reading everything again
    EXPECT_EQ(followed_budget(now), std::nullopt);
    now.spare = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(followed_budget(now), 20 * kGiB);
    now.budget = 20 * kGiB;
    EXPECT_EQ(followed_budget(now), std::nullopt);
}

// More than all weights is no budget: what is missing is taken from what is used.
TEST(FollowedBudget, ABudgetBeyondAllWeightsCountsAsAllOfThem) {
    EXPECT_EQ(
        followed_budget({.budget = 100 * kGiB, .spare = -kGiB, .least = kGiB, .most = 10 * kGiB}),
        9 * kGiB);
}

TEST(FollowedBudget, WhatIsSetComesBeforeWhatIsLeftAndAgainUntilItIsSettled) {
    std::int64_t spare = -kGiB;
    Budget budget(
        8 * kGiB, [&] { return spare; }, std::chrono::nanoseconds(0));
    EXPECT_EQ(budget.next(kGiB, 20 * kGiB, false), 7 * kGiB);
    spare = -2 * kGiB;
    EXPECT_EQ(budget.next(kGiB, 20 * kGiB, false), 7 * kGiB);
    budget.settle(7 * kGiB);
    EXPECT_EQ(budget.next(kGiB, 20 * kGiB, false), 5 * kGiB);
    budget.set(3 * kGiB, {});
    EXPECT_EQ(budget.next(kGiB, 20 * kGiB, false), 3 * kGiB);
    budget.settle(3 * kGiB);
    EXPECT_EQ(budget.next(kGiB, 20 * kGiB, true), std::nullopt);
    EXPECT_FALSE(budget.follows());
}

// Others may have taken meanwhile what was left.
TEST(FollowedBudget, ABudgetThatIsRefusedIsTriedSmallerWhereItFollows) {
    std::vector<std::uint64_t> tried;
    std::uint64_t there = 0;
    const auto use = [&](std::uint64_t bytes) {
        tried.push_back(bytes);
        if (bytes > there) {
            base::raise(base::error(ErrorCode::kOutOfMemory, "stream", "no room"));
        }
    };
    const SpareMemory spare = [] { return std::int64_t{0}; };
    Budget budget(100, spare, std::chrono::nanoseconds(0));
    there = 100;
    change_budget(budget, 150, 10, use);
    EXPECT_EQ(tried, (std::vector<std::uint64_t>{150, 100}));
    tried.clear();
    there = 60;
    change_budget(budget, 150, 10, use);
    EXPECT_EQ(tried, (std::vector<std::uint64_t>{150, 100, 75, 57}));  // 75 - 18
    EXPECT_EQ(budget.bytes(), 57U);
    tried.clear();
    there = 0;
    EXPECT_THROW(change_budget(budget, 12, 10, use), Error);
    EXPECT_EQ(tried, (std::vector<std::uint64_t>{12, 10}));
    budget.set(80, {});
    EXPECT_THROW(change_budget(budget, 80, 10, use), Error);  // the caller's wish
    EXPECT_EQ(budget.next(10, 200, false), 80U);
}

TEST(FollowedBudget, WaitingForATenthOfTheTimeIsPressure) {
    using std::chrono::microseconds;
    using std::chrono::milliseconds;
    const auto begin = std::chrono::steady_clock::now();
    PressureWatch watch;
    EXPECT_FALSE(watch.pressed(milliseconds(500), begin)) << "before it was made";
    EXPECT_FALSE(watch.pressed(milliseconds(509), begin + milliseconds(100)));
    EXPECT_TRUE(watch.pressed(milliseconds(520), begin + milliseconds(200)));
    EXPECT_TRUE(watch.pressed(milliseconds(520), begin + milliseconds(210))) << "too early to say";
    EXPECT_FALSE(watch.pressed(milliseconds(520), begin + milliseconds(400)));
    // It is of another group now, or none: nothing can be said before two of the same were seen.
    EXPECT_FALSE(watch.pressed(milliseconds(3), begin + milliseconds(500)));
    EXPECT_FALSE(watch.pressed(std::nullopt, begin + milliseconds(600)));
    EXPECT_FALSE(watch.pressed(milliseconds(900), begin + milliseconds(700)));
    EXPECT_TRUE(watch.pressed(milliseconds(1000), begin + milliseconds(800)));
    EXPECT_FALSE(watch.pressed(microseconds(INT64_MAX / 100'000), begin + std::chrono::hours(1)) &&
                 watch.pressed(std::nullopt, begin + std::chrono::hours(2)));
}

// Other programs take and give memory meanwhile.
TEST(FollowedBudget, SpareMemoryIsWhatIsLeftLessTheReserve) {
    constexpr std::int64_t kReserve = std::int64_t{1} << 50;
    EXPECT_GT(spare_memory(0)(), 0);
    EXPECT_NEAR(static_cast<double>(spare_memory(kReserve)()),
                static_cast<double>(spare_memory(0)() - kReserve), 8e9);
}

}  // namespace
}  // namespace penstock::tier
