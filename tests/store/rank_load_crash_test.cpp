// SPDX-License-Identifier: Apache-2.0
// Loads by ranks that are killed, stopped or late, whose disk refuses, or that find a checkpoint
// damaged, at any step. Whatever happens: all that load take the same checkpoint, nobody reads one
// that another rank cannot load, and unless rank 0 fell silent, all that go on come to one answer.
#include "store/rank_state.hpp"
#include "support/rank_simulation.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace penstock::store {
namespace {

using test::RankEvent;
using test::RankResult;
using test::RankSimulation;

constexpr std::uint32_t kWaitMs = 1000;
constexpr std::uint64_t kSaved = 3;

/// Three checkpoints; loads change nothing, so all runs are on the same disks.
class Disks {
public:
    explicit Disks(std::uint32_t count) : count_(count), rig_(1, {}) {
        for (std::uint64_t number = 1; number <= kSaved; ++number) {
            RankSimulation simulation(rig_, count, number);
            simulation.run([&](const Ranks& ranks) {
                CheckpointStore store(rig_.engine(), rig_.files(), {"/ckpt"}, {.ranks = ranks});
                const RankState state(ranks.number(), ranks.count(), number);
                static_cast<void>(store.save(state.state(), {.step = number}));
            });
        }
    }
    [[nodiscard]] test::CrashRig& rig() { return rig_; }
    [[nodiscard]] std::uint32_t count() const { return count_; }

private:
    std::uint32_t count_;
    test::CrashRig rig_;
};

/// One load.
class Run {
public:
    Run(Disks& disks, std::uint64_t seed, bool is_agreed)
        : disks_(disks),
          random_(seed),
          is_agreed_(is_agreed),
          loaded_(disks.count()),
          silent_(disks.count(), false) {}

    void happen(std::uint64_t turns) {
        RankSimulation simulation(disks_.rig(), disks_.count(), random_());
        const std::uint64_t damages = random_() % 3;
        for (std::uint64_t i = 0; i < damages; ++i) {
            const auto rank = static_cast<std::uint32_t>(random_() % disks_.count());
            const std::uint64_t generation = 1 + random_() % kSaved;
            damaged_.emplace(rank, generation, random_() % 2 == 0);
            story_ += fmt::format("rank {} finds {} damaged; ", rank, generation);
        }
        const std::uint64_t events = random_() % 8 == 0 ? 2 : random_() % 4 == 0 ? 0 : 1;
        for (std::uint64_t i = 0; i < events; ++i) {
            add_event(simulation, turns);
        }
        if (random_() % 3 == 0) {
            simulation.delay_messages(std::chrono::milliseconds(100));
        }
        simulation.run([&](const Ranks& ranks) {
            CheckpointStore store(disks_.rig().engine(), disks_.rig().files(), {"/ckpt"},
                                  {.ranks = ranks, .rank_wait_ms = kWaitMs});
            std::optional<CheckpointInfo> info;
            if (is_agreed_) {
                info = store.load([&](const Loading& loading) { use(ranks.number(), loading); });
            } else {
                info = store.open_newest([&](Checkpoint opened) {
                    use(ranks.number(), {std::move(opened), [] {}, {}});
                });
            }
            const std::lock_guard lock(mutex_);
            loaded_[ranks.number()] = info ? info->generation : 0;
        });
        results_ = simulation.results();
        turns_ = simulation.turns(0);
        keys_ = simulation.keys();
    }

    [[nodiscard]] std::string check() const {
        std::set<std::uint64_t> seen;
        std::set<std::string> answers;  // of the ranks that were there all the time
        for (std::uint32_t rank = 0; rank < disks_.count(); ++rank) {
            const RankResult& result = results_[rank];
            if (!result.ended) {
                return "no end";
            }
            if (result.saved()) {
                seen.insert(loaded_[rank]);
            }
            if (!result.killed && !silent_[rank]) {
                answers.insert(result.saved() ? std::to_string(loaded_[rank]) : "an error");
            }
        }
        if (!early_.empty()) {
            return "early: " + early_;
        }
        if (seen.size() > 1) {
            return "two checkpoints were loaded";
        }
        if (!silent_[0] && answers.size() > 1) {
            return "some loaded it, and some failed";
        }
        if (!has_events_ && *answers.begin() != std::to_string(newest())) {
            return fmt::format("{} was loaded, and {} is the newest", *answers.begin(), newest());
        }
        if (!has_events_ && keys_ != 0) {
            return fmt::format("{} keys are left in the mailbox", keys_);
        }
        return {};
    }
    [[nodiscard]] std::uint64_t turns() const { return turns_; }
    [[nodiscard]] std::string ending() const {
        const auto saved =
            std::count_if(results_.begin(), results_.end(), [](auto& one) { return one.saved(); });
        return saved == disks_.count() ? "all loaded" : saved == 0 ? "none loaded" : "some loaded";
    }
    [[nodiscard]] std::string story() const {
        std::string story = story_;
        for (std::size_t i = 0; i < results_.size(); ++i) {
            const RankResult& result = results_[i];
            story += fmt::format(
                "\n  rank {}: {}{}", i, result.killed ? "killed; " : "",
                result.error.empty() ? "loaded " + std::to_string(loaded_[i]) : result.error);
        }
        return story;
    }

private:
    struct Damage {
        std::uint32_t rank;
        std::uint64_t generation;
        bool is_early;  ///< before ready()
        Damage(std::uint32_t of, std::uint64_t in, bool early)
            : rank(of), generation(in), is_early(early) {}
        auto operator<=>(const Damage&) const = default;
    };

    void add_event(RankSimulation& simulation, std::uint64_t turns) {
        RankEvent event;
        event.rank = static_cast<std::uint32_t>(random_() % disks_.count());
        event.turn = random_() % turns;
        const std::uint64_t kind = random_() % 4;
        event.kind = kind == 0   ? RankEvent::Kind::kKilled
                     : kind == 1 ? RankEvent::Kind::kStopped
                     : kind == 2 ? RankEvent::Kind::kLate
                                 : RankEvent::Kind::kFault;
        event.late = std::chrono::milliseconds(random_() % (3 * std::uint64_t{kWaitMs}));
        event.system_errno = random_() % 2 == 0 ? EIO : EACCES;
        has_events_ = true;
        silent_[event.rank] = silent_[event.rank] || kind < 3;
        constexpr const char* kNames[] = {"killed", "stopped", "late", "a fault"};
        story_ += fmt::format("{} at turn {} of rank {}; ", kNames[kind], event.turn, event.rank);
        simulation.add(event);
    }

    void use(std::uint32_t rank, const Loading& loading) {
        const std::uint64_t generation = loading.checkpoint.info().generation;
        const auto look = [&](bool early) {
            if (damaged_.contains({rank, generation, early})) {
                throw Error(ErrorCode::kDamaged, 0, "read", "shard", kNoOffset, "it differs");
            }
        };
        look(true);
        {
            const std::lock_guard lock(mutex_);
            called_[generation].insert(rank);
        }
        loading.ready();
        {
            const std::lock_guard lock(mutex_);
            if (called_[generation].size() < disks_.count()) {
                early_ =
                    fmt::format("rank {} reads generation {} before all can", rank, generation);
            }
        }
        look(false);
        loading.progress ? void(loading.progress(1, 1)) : void();
    }
    // Finds the newest one that no rank finds damaged.
    [[nodiscard]] std::uint64_t newest() const {
        for (std::uint64_t generation = kSaved; generation > 0; --generation) {
            if (std::none_of(damaged_.begin(), damaged_.end(),
                             [&](const Damage& one) { return one.generation == generation; })) {
                return generation;
            }
        }
        return 0;
    }

    Disks& disks_;
    std::mt19937_64 random_;
    bool is_agreed_;
    std::mutex mutex_;
    std::set<Damage> damaged_;
    std::map<std::uint64_t, std::set<std::uint32_t>> called_;
    std::vector<std::uint64_t> loaded_;
    std::vector<bool> silent_;  ///< killed, stopped or late
    bool has_events_ = false;
    std::vector<RankResult> results_;
    std::string early_;
    std::uint64_t turns_ = 0;
    std::size_t keys_ = 0;
    std::string story_;
};

struct Explored {
    std::map<std::string, std::uint64_t> seen;
    std::string first;
};

Explored explore(std::uint32_t count, const std::string& name, std::uint64_t runs,
                 bool is_agreed = true) {
    static const char* const asked = std::getenv("PENSTOCK_TEST_STATE");
    Disks disks(count);
    std::uint64_t turns = 60;
    Explored out;
    for (std::uint64_t seed = 1; seed <= runs && out.first.empty(); ++seed) {
        const std::string state = fmt::format("{}:{}", name, seed);
        if (asked != nullptr && state != asked) {
            continue;
        }
        Run run(disks, seed, is_agreed);
        run.happen(turns);
        ++out.seen[run.ending()];
        if (run.ending() == "all loaded") {
            turns = std::max<std::uint64_t>(run.turns(), 20);
        }
        if (const std::string wrong = run.check(); !wrong.empty()) {
            out.first = fmt::format("PENSTOCK_TEST_STATE={}: {}\n  {}", state, wrong, run.story());
        }
    }
    return out;
}

void expect_promises(std::uint32_t count, const std::string& name, std::uint64_t share) {
    const Explored explored =
        explore(count, name, std::max<std::uint64_t>(test::states_wanted() / share, 300));
    EXPECT_EQ(explored.first, "");
    for (const auto& [what, times] : explored.seen) {
        ::testing::Test::RecordProperty(what, std::to_string(times));
    }
    if (std::getenv("PENSTOCK_TEST_STATE") == nullptr) {
        EXPECT_TRUE(explored.seen.contains("all loaded"));
        EXPECT_TRUE(explored.seen.contains("none loaded"));
    }
}

TEST(CrashOfLoads, TwoRanks) {
    expect_promises(2, "load_two", 100);
}

TEST(CrashOfLoads, ThreeRanks) {
    expect_promises(3, "load_three", 100);
}

TEST(CrashOfLoads, FiveRanks) {
    expect_promises(5, "load_five", 200);
}

// A harness that finds nothing proves nothing.
TEST(CrashOfLoadsIsSeen, RanksThatLoadAlone) {
    EXPECT_NE(explore(3, "alone", 100, false).first, "");
}

}  // namespace
}  // namespace penstock::store
