// SPDX-License-Identifier: Apache-2.0
// Ranks that train and are asked to stop, in random order: all stop at the same step, or none does,
// and nobody waits for a rank that waits for it.
#include "support/rank_simulation.hpp"

#include <penstock/ranks.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock {
namespace {

using std::chrono::milliseconds;
using test::RankEvent;
using test::RankSimulation;
using ::testing::HasSubstr;

constexpr std::uint64_t kNever = UINT64_MAX;

struct Training {
    std::uint32_t count = 3;
    std::uint64_t steps = 30;
    std::uint32_t stride = 1;
    bool is_coupled = true;  ///< each step needs all ranks, as with gradients that are summed
    bool is_naive = false;   ///< each rank stops when it hears that one was asked
    std::vector<std::uint64_t> asked_at;  ///< by rank: from which step on
};

struct Trained {
    std::vector<std::uint64_t> stopped_at;  ///< by rank; 0: not at all
    std::vector<std::string> errors;
    std::size_t keys = 0;
    std::string story;
};

// The gradients of all ranks, in a mailbox of their own that no rank takes with it.
void sum_gradients(const Ranks& ranks, std::uint64_t step) {
    const auto key = [&](std::uint32_t rank) { return fmt::format("gradient/{}/{}", step, rank); };
    ranks.mailbox()->put(key(ranks.number()), {});
    for (std::uint32_t rank = 0; rank < ranks.count(); ++rank) {
        for (int tries = 0; !ranks.mailbox()->get(key(rank), milliseconds(500)); ++tries) {
            if (tries == 100) {
                throw std::runtime_error("deadlock: a gradient never comes");
            }
        }
    }
}

Trained train(const Training& plan, std::uint64_t seed, const std::vector<RankEvent>& events = {}) {
    std::mt19937_64 dice(seed);
    test::CrashRig rig(1, {});
    RankSimulation simulation(rig, plan.count, dice());
    dice() % 2 == 0 ? simulation.delay_messages(milliseconds(20)) : void();
    for (const RankEvent& event : events) {
        simulation.add(event);
    }
    const auto slow = static_cast<std::uint32_t>(dice() % plan.count);
    const std::uint64_t slowness = dice() % 3 == 0 ? 300 : 3;
    Trained out;
    out.stopped_at.assign(plan.count, 0);
    simulation.run([&](const Ranks& ranks) {
        const std::uint32_t rank = ranks.number();
        std::mt19937_64 own(seed * 31 + rank);
        std::uint64_t& stopped_at = out.stopped_at[rank];
        StopTogether stop(ranks, {.limit = std::chrono::seconds(20), .stride = plan.stride});
        for (std::uint64_t step = 1; step <= plan.steps; ++step) {
            const std::uint64_t longest = rank == slow ? slowness : 3;
            static_cast<void>(ranks.mailbox()->get(fmt::format("work/{}", rank),
                                                   milliseconds(1 + own() % longest)));
            plan.is_coupled ? sum_gradients(ranks, step) : void();
            const bool is_asked = step >= plan.asked_at[rank];
            bool stops = false;
            if (plan.is_naive) {
                is_asked ? ranks.mailbox()->put("asked", {}) : void();
                stops = ranks.mailbox()->get("asked", milliseconds(0)).has_value();
            } else {
                stops = stop.step_end(is_asked);
            }
            if (stops) {
                stopped_at = step;
                return;
            }
        }
        if (!plan.is_naive && stop.end(plan.steps + 1 >= plan.asked_at[rank])) {
            stopped_at = plan.steps + 1;
        }
    });
    for (std::uint32_t rank = 0; rank < plan.count; ++rank) {
        out.errors.push_back(simulation.results()[rank].error);
        out.story += fmt::format(
            "\n  rank {}: asked at {}, stopped at {}, {}", rank,
            plan.asked_at[rank] == kNever ? "no step" : std::to_string(plan.asked_at[rank]),
            out.stopped_at[rank], out.errors.back());
    }
    return out;
}

Training drawn(std::uint64_t seed) {
    std::mt19937_64 dice(seed * 7919);
    Training plan;
    plan.count = 2 + static_cast<std::uint32_t>(dice() % 4);
    plan.steps = 1 + dice() % 40;
    plan.stride = 1 + static_cast<std::uint32_t>(dice() % 4);
    plan.is_coupled = dice() % 4 != 0;
    plan.asked_at.assign(plan.count, kNever);
    const std::uint64_t asked = dice() % 5 == 0 ? 0 : dice() % 4 == 0 ? plan.count : 1;
    for (std::uint64_t i = 0; i < asked; ++i) {
        plan.asked_at[dice() % plan.count] = 1 + dice() % (plan.steps + 1);
    }
    return plan;
}

std::string check(const Training& plan, const Trained& trained) {
    for (const std::string& error : trained.errors) {
        if (!error.empty()) {
            return error;
        }
    }
    const std::set<std::uint64_t> steps(trained.stopped_at.begin(), trained.stopped_at.end());
    if (steps.size() != 1) {
        return "they stopped at several steps";
    }
    const std::uint64_t first = *std::min_element(plan.asked_at.begin(), plan.asked_at.end());
    const std::uint64_t stopped = *steps.begin();
    if (first == kNever ? stopped != 0 : stopped != 0 && stopped < first) {
        return "they stopped, and nobody had asked";
    }
    // Rank 0 cannot hear what is asked when it is at its end.
    const std::uint64_t later = 2 * (plan.stride + 1) + 1;
    const bool is_heard = plan.asked_at[0] != kNever ||
                          (plan.is_coupled && first != kNever && first + later <= plan.steps);
    if (is_heard && stopped == 0) {
        return "one had asked, and nobody stopped";
    }
    if (is_heard && plan.is_coupled && stopped > first + later) {
        return "they stopped late";
    }
    return {};
}

TEST(StopsTogether, InAnyOrderOfSteps) {
    std::uint64_t stopped = 0;
    std::uint64_t at_end = 0;
    for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
        const Training plan = drawn(seed);
        const Trained trained = train(plan, seed);
        ASSERT_EQ(check(plan, trained), "")
            << "seed " << seed << ", " << plan.steps << " steps" << trained.story;
        stopped += trained.stopped_at[0] != 0 ? 1 : 0;
        at_end += trained.stopped_at[0] == plan.steps + 1 ? 1 : 0;
    }
    EXPECT_GT(stopped, 500U);
    EXPECT_GT(at_end, 20U);
}

// A harness that finds nothing proves nothing.
TEST(StopsTogether, IsSeenToFailWhereEachStopsWhenItHears) {
    std::string first;
    for (std::uint64_t seed = 1; seed <= 100 && first.empty(); ++seed) {
        Training plan = drawn(seed);
        plan.is_naive = true;
        first = check(plan, train(plan, seed));
    }
    EXPECT_NE(first, "");
}

TEST(StopsTogether, WithoutRank0ThereIsOneErrorAndNoWait) {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        Training plan = drawn(seed);
        plan.is_coupled = false;
        RankEvent killed{.kind = RankEvent::Kind::kKilled};
        killed.turn = seed % 60;
        const Trained trained = train(plan, seed, {killed});
        std::set<std::uint64_t> steps;
        for (std::uint32_t rank = 1; rank < plan.count; ++rank) {
            if (trained.errors[rank].empty()) {
                steps.insert(trained.stopped_at[rank]);
            }
        }
        EXPECT_LE(steps.size(), 1U) << "seed " << seed << trained.story;
    }
}

TEST(StopsTogether, WhoIsAheadOfARankThatStandsStillNamesIt) {
    const std::vector<Ranks> ranks = Ranks::of_threads(2);
    StopTogether stop(ranks[1], {.limit = milliseconds(100)});
    EXPECT_FALSE(stop.step_end(false));
    try {
        static_cast<void>(stop.step_end(false));
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 0 of 2 has not ended a step within 0.1 s"));
    }
    EXPECT_FALSE(stop.step_end(true));  // there is no agreement any more
    EXPECT_FALSE(stop.end(true));
}

TEST(StopsTogether, OneRankStopsWhenItIsAsked) {
    StopTogether stop{Ranks()};
    EXPECT_FALSE(stop.step_end(false));
    EXPECT_TRUE(stop.step_end(true));
    EXPECT_FALSE(stop.end(false));
    EXPECT_TRUE(stop.end(true));
    EXPECT_FALSE(stop.leave());
}

TEST(StopsTogether, WhoLeavesEarlyIsNotWaitedFor) {
    const std::vector<Ranks> ranks = Ranks::of_threads(2);
    StopTogether first(ranks[0]);
    StopTogether second(ranks[1], {.limit = milliseconds(100)});
    EXPECT_FALSE(first.leave());
    for (int step = 0; step < 100; ++step) {
        EXPECT_FALSE(second.step_end(true));
    }
    EXPECT_FALSE(second.end(true));
    StopTogether third(ranks[0], {.stride = 2});
    StopTogether fourth(ranks[1]);
    EXPECT_FALSE(third.step_end(true));  // step 2 is the last
    EXPECT_TRUE(fourth.leave());         // and this rank does not come to it
}

TEST(StopsTogether, LeavesNoKeyWhenAllHaveLeft) {
    const std::vector<Ranks> ranks = Ranks::of_threads(2);
    for (const bool is_asked : {true, false}) {
        StopTogether first(ranks[0]);
        StopTogether second(ranks[1]);
        EXPECT_FALSE(first.step_end(false));
        EXPECT_FALSE(second.step_end(is_asked));
        EXPECT_EQ(first.end(false), is_asked);
        EXPECT_EQ(second.end(false), is_asked);
    }
    for (const int guard : {0, 1}) {
        for (const char* key : {"until", "asked", "left/1"}) {
            EXPECT_FALSE(
                ranks[0].mailbox()->get(fmt::format("stop{}/{}", guard, key), milliseconds(0)));
        }
    }
}

}  // namespace
}  // namespace penstock
