// SPDX-License-Identifier: Apache-2.0
// A budget that follows what memory is left, as arithmetic and in a stream.
#include "weights/stream/followed_budget.hpp"

#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/state_file.hpp>
#include <penstock/weights.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace penstock::weights {
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

TEST(FollowedBudget, FollowsInAStreamBothWaysWithTheRightBytes) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    State state;
    std::vector<WeightUnit> units;
    std::vector<std::vector<std::byte>> data;
    data.reserve(6);
    for (std::size_t i = 0; i < 6; ++i) {
        const std::string name = "layer." + std::to_string(i);
        data.push_back(support::pattern(60'000, i));
        state.tensors.push_back({name, "U8", {data[i].size()}, data[i]});
        units.push_back({name, {name}});
    }
    save_file(engine, folder / "model.safetensors", state);
    const TensorTable table = inspect(engine, folder / "model.safetensors");
    const std::uint64_t least = least_weight_memory(table, units);
    const std::uint64_t begin = 1 << 20;
    std::int64_t spare = 0;
    WeightStream stream(engine, table, units,
                        {.memory_bytes = begin,
                         .spare = [&] { return spare; },
                         .spare_interval = std::chrono::nanoseconds(0)});
    auto pass = [&] {
        for (std::size_t unit = 0; unit < units.size(); ++unit) {
            const WeightView& view = stream.acquire(unit);
            ASSERT_TRUE(std::equal(view.tensors[0].begin(), view.tensors[0].end(),
                                   data[unit].begin(), data[unit].end()));
            stream.release(unit);
        }
    };
    pass();
    EXPECT_EQ(stream.plan().memory_bytes, begin);
    EXPECT_EQ(stream.plan().read_bytes, 0U);

    stream.acquire(0);
    spare = -static_cast<std::int64_t>(begin);
    ASSERT_EQ(stream.acquire(1).tensors.size(), 1U);  // not while a unit is held
    EXPECT_EQ(stream.plan().memory_bytes, begin);
    stream.release(0);
    stream.release(1);
    pass();
    EXPECT_EQ(stream.plan().memory_bytes, least);
    EXPECT_GT(stream.plan().read_bytes, 0U);

    spare = begin;
    pass();
    pass();
    EXPECT_GT(stream.plan().memory_bytes, least);
    EXPECT_EQ(stream.plan().read_bytes, 0U);

    std::mt19937_64 random(5);
    for (int passes = 0; passes < 50; ++passes) {
        spare = static_cast<std::int64_t>(random() % 400'000) - 200'000;
        pass();
        EXPECT_GE(stream.plan().memory_bytes, least);
        EXPECT_LE(stream.plan().used_bytes(), stream.plan().memory_bytes);
    }

    stream.set_memory(least);  // from now on it stays
    spare = begin;
    pass();
    pass();
    EXPECT_EQ(stream.plan().memory_bytes, least);
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
}  // namespace penstock::weights
