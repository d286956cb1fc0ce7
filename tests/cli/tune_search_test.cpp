// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace penstock::cli {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kSeeds = 100;

// A device that exists in arithmetic: bytes a second of settings at a time, with noise on top.
struct Device {
    std::function<double(const TuneSettings&, bool write, double now)> rate;
    double noise = 0.01;    // deviation of the logarithm
    double slice_s = 0.15;  // what a slice takes
    std::uint64_t seed = 1;
};

struct Ran {
    TuneSearch search;
    double seconds = 0;
    std::size_t slices = 0;
};

Ran run(const Device& device, SearchRules rules = {}) {
    rules.seed = device.seed;
    Ran ran{TuneSearch(TuneSettings{}, rules)};
    std::mt19937_64 random(device.seed * 7919);
    std::normal_distribution<double> normal(0, device.noise);
    while (const auto candidate = ran.search.next(ran.seconds)) {
        const TuneSettings settings = ran.search.candidates()[*candidate].settings;
        Rates rates;
        for (const bool write : {false, true}) {
            if (write ? rules.write : rules.read) {
                const double rate =
                    device.rate(settings, write, ran.seconds) * std::exp(normal(random));
                (write ? rates.write : rates.read) = rate;
                ran.seconds += device.slice_s;
                ++ran.slices;
            }
        }
        ran.search.add(rates, ran.seconds);
    }
    // Whatever is said is covered by its interval.
    for (const Goal goal : ran.search.goals()) {
        const GoalVerdict& verdict = ran.search.verdict(goal);
        if (verdict.kind == GoalVerdict::Kind::kSame) {
            EXPECT_LT(verdict.ratio.high, 1 + rules.gain_min);
        } else if (verdict.kind == GoalVerdict::Kind::kBetter) {
            EXPECT_GT(verdict.ratio.low, 1 + rules.gain_min);
            EXPECT_NE(verdict.candidate, 0U);
        }
    }
    return ran;
}

double flat(const TuneSettings& /*settings*/, bool /*write*/, double /*now*/) {
    return 1e9;
}

// Little's law: the rate grows with what is in flight and stops at what the device can.
double needs_depth(const TuneSettings& settings, bool /*write*/, double /*now*/) {
    const double in_flight = static_cast<double>(settings.in_flight_bytes()) / kMiB;
    return 4e9 * std::min(1.0, in_flight / 32);
}

bool is_better(const Ran& ran, Goal goal) {
    return ran.search.verdict(goal).kind == GoalVerdict::Kind::kBetter;
}

std::size_t false_winners(Device device, const SearchRules& rules = {}) {
    std::size_t count = 0;
    for (device.seed = 1; device.seed <= kSeeds; ++device.seed) {
        count += is_better(run(device, rules), Goal::kBoth) ? 1 : 0;
    }
    return count;
}

TEST(TuneSearchTest, AFlatDeviceKeepsTheDefaultsAndIsKnownEarly) {
    Device device{.rate = flat, .noise = 0.005};
    EXPECT_LE(false_winners(device), kSeeds / 50);
    const Ran ran = run(device);
    EXPECT_EQ(ran.search.choice(), TuneSettings{});
    EXPECT_EQ(ran.search.verdict(Goal::kBoth).kind, GoalVerdict::Kind::kSame);
    EXPECT_LT(ran.search.verdict(Goal::kBoth).ratio.high, 1.02);
    EXPECT_LT(ran.seconds, 30);
}

TEST(TuneSearchTest, ANoisyDeviceHasNoRandomWinner) {
    for (const double noise : {0.05, 0.15, 0.4}) {
        EXPECT_LE(false_winners({.rate = flat, .noise = noise}), kSeeds / 50) << noise;
    }
}

// The rate of everything jumps by 2x and stays there for seconds.
TEST(TuneSearchTest, ADeviceThatSwingsHasNoRandomWinner) {
    const auto swings = [](const TuneSettings&, bool, double now) {
        const auto period = static_cast<std::uint64_t>(now / 1.7);
        return (period * 2654435761U >> 7U) % 2 == 0 ? 1e9 : 2e9;
    };
    EXPECT_LE(false_winners({.rate = swings, .noise = 0.1}), kSeeds / 50);
}

// A cache that fills: ten times slower at the end, and nobody is to blame.
TEST(TuneSearchTest, ADeviceThatDriftsHasNoRandomWinner) {
    const auto drifts = [](const TuneSettings&, bool, double now) {
        return 1e9 * std::exp(-now / 17);
    };
    EXPECT_LE(false_winners({.rate = drifts, .noise = 0.02}), kSeeds / 50);
}

TEST(TuneSearchTest, AClearWinnerIsFoundAlsoUnderNoise) {
    for (const double noise : {0.01, 0.1}) {
        std::size_t good = 0;
        for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
            const Ran ran = run({.rate = needs_depth, .noise = noise, .seed = seed});
            const bool near = needs_depth(ran.search.choice(), false, 0) >= 0.95 * 4e9;
            good += near && is_better(ran, Goal::kBoth) ? 1 : 0;
        }
        EXPECT_GE(good, kSeeds * 95 / 100) << noise;
    }
}

TEST(TuneSearchTest, AClearWinnerIsKnownEarlyAndItsRatioIsRight) {
    const Ran ran = run({.rate = needs_depth, .noise = 0.01});
    const GoalVerdict& verdict = ran.search.verdict(Goal::kBoth);
    EXPECT_EQ(verdict.kind, GoalVerdict::Kind::kBetter);
    EXPECT_NEAR(verdict.ratio.mean, 2, 0.1);
    EXPECT_LT(verdict.ratio.low, verdict.ratio.mean);
    EXPECT_LT(ran.seconds, 36);
}

// Also with the whole device drifting under it.
TEST(TuneSearchTest, AWinnerIsFoundOnADriftingDevice) {
    std::size_t good = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        const auto drifts = [](const TuneSettings& settings, bool write, double now) {
            return needs_depth(settings, write, now) * std::exp(-now / 30);
        };
        good += is_better(run({.rate = drifts, .noise = 0.03, .seed = seed}), Goal::kBoth) ? 1 : 0;
    }
    EXPECT_GE(good, kSeeds * 95 / 100);
}

TEST(TuneSearchTest, ABackendOrMoreChannelsCanWin) {
    const auto by_backend = [](const TuneSettings& settings, bool, double) {
        return settings.backend == BackendKind::kAio ? 1.3e9 : 1e9;
    };
    const Ran backend =
        run({.rate = by_backend}, {.backends = {BackendKind::kAio, BackendKind::kPosix}});
    EXPECT_EQ(backend.search.choice().backend, BackendKind::kAio);

    const auto by_channels = [](const TuneSettings& settings, bool, double) {
        return settings.channels > 1 ? 1.3e9 : 1e9;
    };
    EXPECT_EQ(run({.rate = by_channels}).search.choice().channels, 2U);
}

TEST(TuneSearchTest, ReadAndWriteAreJudgedApart) {
    // Reads want small blocks, writes do not care.
    const auto reads_small = [](const TuneSettings& settings, bool write, double) {
        return !write && settings.block_bytes <= 256 << 10 ? 1.5e9 : 1e9;
    };
    const Ran ran = run({.rate = reads_small});
    EXPECT_TRUE(is_better(ran, Goal::kRead));
    EXPECT_EQ(ran.search.verdict(Goal::kWrite).kind, GoalVerdict::Kind::kSame);
    EXPECT_TRUE(is_better(ran, Goal::kBoth));
    EXPECT_NEAR(ran.search.verdict(Goal::kRead).ratio.mean, 1.5, 0.05);
    EXPECT_NEAR(ran.search.verdict(Goal::kBoth).ratio.mean, std::sqrt(1.5), 0.05);
}

// Writes lose as much as reads gain: together there is nothing to choose.
TEST(TuneSearchTest, AGainThatCostsAsMuchIsNoneTogether) {
    const auto swaps = [](const TuneSettings& settings, bool write, double) {
        const bool small = settings.block_bytes < kMiB;
        return 1e9 * (small ? (write ? 0.5 : 1.5) : 1);
    };
    const Ran ran = run({.rate = swaps});
    EXPECT_TRUE(is_better(ran, Goal::kRead));
    EXPECT_FALSE(is_better(ran, Goal::kBoth));
    EXPECT_EQ(ran.search.choice(), TuneSettings{});
}

TEST(TuneSearchTest, OnlyReadingAsksForNothingElse) {
    const Ran ran = run({.rate = needs_depth}, {.write = false, .backends = {}});
    EXPECT_EQ(ran.search.goals(), std::vector<Goal>{Goal::kRead});
    EXPECT_TRUE(is_better(ran, Goal::kRead));
    EXPECT_GE(ran.search.choice().in_flight_bytes(), 30 * kMiB);
}

TEST(TuneSearchTest, TheTimeIsKeptAlsoWhereASliceTakesSeconds) {
    for (const double slice_s : {0.01, 0.2, 1.0, 4.0}) {
        const Ran ran = run({.rate = flat, .noise = 0.3, .slice_s = slice_s},
                            {.seconds = 40, .full = true, .backends = {}});
        EXPECT_LE(ran.seconds, 40 + 2 * slice_s) << slice_s;
        EXPECT_NE(ran.search.verdict(Goal::kBoth).kind, GoalVerdict::Kind::kBetter) << slice_s;
    }
}

TEST(TuneSearchTest, FullUsesTheTimeAndNarrowsTheInterval) {
    const Device device{.rate = needs_depth, .noise = 0.05};
    const Ran early = run(device);
    const Ran full = run(device, {.full = true, .backends = {}});
    EXPECT_GT(full.seconds, 38);
    EXPECT_GT(full.seconds, early.seconds);
    EXPECT_TRUE(is_better(full, Goal::kBoth));
    const auto width = [](const Ran& ran) {
        const probe::RatioInterval& ratio = ran.search.verdict(Goal::kBoth).ratio;
        return std::log(ratio.high / ratio.low);
    };
    EXPECT_LT(width(full), width(early));
    EXPECT_LE(false_winners({.rate = flat, .noise = 0.1}, {.full = true, .backends = {}}),
              kSeeds / 20);
}

TEST(TuneSearchTest, StoppedBeforeTheFirstRoundNothingIsShown) {
    TuneSearch search(TuneSettings{}, {});
    ASSERT_TRUE(search.next(0));
    search.add({1e9, 1e9}, 0.1);
    search.stop();
    EXPECT_FALSE(search.next(0.2));
    EXPECT_EQ(search.verdict(Goal::kBoth).kind, GoalVerdict::Kind::kUnclear);
    EXPECT_EQ(search.choice(), TuneSettings{});
}

TEST(TuneSearchTest, ASeedReplays) {
    const Device device{.rate = needs_depth, .noise = 0.2, .seed = 42};
    const Ran one = run(device);
    const Ran two = run(device);
    EXPECT_EQ(one.slices, two.slices);
    EXPECT_EQ(one.search.choice(), two.search.choice());
}

TEST(TuneSettingsTest, TheDefaultsStayTheEnginesOwn) {
    const EngineOptions defaults;
    const TuneSettings settings = default_settings(defaults);
    EXPECT_EQ(settings, (TuneSettings{.block_bytes = kMiB, .depth = 16}));
    EXPECT_EQ(engine_options(settings, defaults).queue_depth, defaults.queue_depth);
    EXPECT_EQ(engine_options(settings, defaults).in_flight_bytes, defaults.in_flight_bytes);
    const TuneSettings other{.block_bytes = 2 * kMiB, .depth = 64, .channels = 2};
    EXPECT_EQ(engine_options(other, defaults).in_flight_bytes, 128 * kMiB);
    EXPECT_EQ(engine_options(other, defaults).channels, 2U);
}

TEST(TuneSettingsTest, EveryPointIsOneThatAnEngineTakes) {
    std::vector<TuneSettings> all = spread_around(TuneSettings{});
    EXPECT_EQ(all.front(), TuneSettings{});
    for (const TuneSettings& settings : spread_around(TuneSettings{})) {
        for (const TuneSettings& other : neighbours(settings, {BackendKind::kAio})) {
            EXPECT_NE(other, settings);
            all.push_back(other);
        }
    }
    for (const TuneSettings& settings : all) {
        EXPECT_EQ(settings.block_bytes % (64 << 10), 0U);
        EXPECT_GE(settings.depth, 1U);
        EXPECT_LE(settings.in_flight_bytes(), 128 * kMiB);
    }
}

}  // namespace
}  // namespace penstock::cli
