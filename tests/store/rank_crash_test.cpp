// SPDX-License-Identifier: Apache-2.0
// Saves by ranks that are killed, stopped, late or refused by their disk at any step, and power
// cuts at any operation. Whatever happens: those who end agree, what one of them called saved is
// there, what all of them called failed never comes, and the checkpoint before stays.
#include "base/path.hpp"
#include "store/keep/place.hpp"
#include "store/keep/store_folder.hpp"
#include "store/rank_state.hpp"
#include "support/rank_simulation.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

using test::RankEvent;
using test::RankResult;
using test::RankSimulation;

constexpr std::uint32_t kWaitMs = 1000;

StoreOptions options_of(const Ranks& ranks, bool at_path) {
    return {.keep = 2,
            .shard_bytes = 3000,
            .at_path = at_path,
            .lock_wait_ms = 0,
            .ranks = ranks,
            .rank_wait_ms = kWaitMs};
}

struct World {
    std::uint32_t count = 3;
    std::vector<std::string> folders = {"/ckpt"};
    std::size_t disks = 1;
    simulation::DiskShape shape = {};
    bool only_look = false;  ///< ranks that hear nothing
    bool apart = false;      ///< each rank has values and keys of its own
    bool at_path = false;    ///< each save replaces the one before
};

/// One run: a save that all agree on, then one in which something happens.
class Run {
public:
    Run(const World& world, std::uint64_t seed)
        : world_(world), random_(seed), rig_(world.disks, world.shape) {
        save(1, nullptr);
    }

    // Draws what happens from the seed; `turns`: about how many a rank has.
    void happen(std::uint64_t turns) {
        RankSimulation simulation(rig_, world_.count, random_());
        if (world_.only_look) {
            simulation.survivors_only_look();
        }
        const std::uint64_t events = random_() % 8 == 0 ? 2 : 1;
        for (std::uint64_t i = 0; i < events; ++i) {
            add_event(simulation, turns);
        }
        if (random_() % 2 == 0) {
            simulation.cut_power_at(random_() % (turns * world_.count / 2));
        }
        save(2, &simulation);
        results_ = simulation.results();
        cut_ = simulation.cut();
        at_cut_ = simulation.results_at_cut();
        turns_ = simulation.turns(0);
        keys_ = simulation.keys();
    }

    [[nodiscard]] std::string check() {
        const test::Disks after = rig_.disks();
        std::string wrong = check_verdict(results_);
        if (wrong.empty()) {
            wrong = check_disks(test::CrashRig::killed(after), results_, "at the end");
        }
        for (std::uint64_t seed = 1; wrong.empty() && seed < 4; ++seed) {
            wrong = check_disks(test::CrashRig::crashed(after, seed), results_,
                                "after a power cut at the end");
            if (wrong.empty() && cut_) {
                wrong = check_disks(test::CrashRig::crashed(*cut_, seed), at_cut_,
                                    "after a power cut on the way");
            }
        }
        if (wrong.empty()) {
            wrong = check_next(test::CrashRig::killed(after));
        }
        return wrong;
    }

    [[nodiscard]] std::uint64_t turns() const { return turns_; }
    [[nodiscard]] std::size_t keys() const { return keys_; }
    /// Whether no rank was stopped or late: what such a one leaves goes with the next save.
    [[nodiscard]] bool on_time() const { return on_time_; }
    [[nodiscard]] const std::vector<RankResult>& results() const { return results_; }
    [[nodiscard]] std::string story() const {
        std::string story = story_;
        for (std::size_t i = 0; i < results_.size(); ++i) {
            const RankResult& result = results_[i];
            story += fmt::format("\n  rank {}: {}{}", i, result.killed ? "killed; " : "",
                                 result.error.empty() ? "saved" : result.error);
        }
        return story;
    }

private:
    void add_event(RankSimulation& simulation, std::uint64_t turns) {
        RankEvent event;
        event.rank = static_cast<std::uint32_t>(random_() % world_.count);
        event.turn = random_() % turns;
        const std::uint64_t kind = random_() % 5;
        event.kind = kind == 0   ? RankEvent::Kind::kNone
                     : kind == 1 ? RankEvent::Kind::kKilled
                     : kind == 2 ? RankEvent::Kind::kStopped
                     : kind == 3 ? RankEvent::Kind::kLate
                                 : RankEvent::Kind::kFault;
        event.late = std::chrono::milliseconds(random_() % (3 * std::uint64_t{kWaitMs}));
        on_time_ = on_time_ && kind != 2 && kind != 3;
        event.system_errno = random_() % 2 == 0 ? EIO : ENOSPC;
        constexpr const char* kNames[] = {"nothing", "killed", "stopped", "late", "a fault"};
        story_ += fmt::format("{} at turn {} of rank {}; ", kNames[kind], event.turn, event.rank);
        simulation.add(event);
    }

    void save(std::uint64_t number, RankSimulation* simulation) {
        std::unique_ptr<RankSimulation> own;
        if (simulation == nullptr) {
            own = std::make_unique<RankSimulation>(rig_, world_.count, random_());
            simulation = own.get();
        }
        simulation->run([&](const Ranks& ranks) {
            CheckpointStore store(rig_.engine(), rig_.files(), world_.folders,
                                  options_of(ranks, world_.at_path));
            const RankState state(ranks.number(), ranks.count(), number, 300, world_.apart);
            static_cast<void>(store.save(state.state(), {.step = number}));
        });
        for (const RankResult& result : simulation->results()) {
            if (own && !result.saved()) {
                throw std::runtime_error("a save without events failed: " + result.error);
            }
        }
    }

    // A rank whose last sync fails cannot know whether the name is durable; others may.
    [[nodiscard]] static std::string check_verdict(const std::vector<RankResult>& results) {
        bool saved = false;
        bool failed = false;
        for (const RankResult& result : results) {
            if (!result.ended) {
                return "no end";
            }
            saved = saved || result.saved();
            failed = failed || (result.failed() && !is_uncertain(result));
        }
        return saved && failed ? "verdict: some ranks saved, and some failed" : "";
    }

    static bool is_uncertain(const RankResult& result) {
        return result.error.find("cannot be found out") != std::string::npos ||
               result.error.find("may not survive a power cut") != std::string::npos;
    }

    [[nodiscard]] std::string check_disks(test::Disks disks, const std::vector<RankResult>& results,
                                          const std::string& when) {
        rig_.use(std::move(disks));
        bool has_old = false;
        bool has_new = false;
        for (const CheckpointInfo& info : there()) {
            if (!info.problem.empty()) {
                return fmt::format("P1 {}: {}: {}", when, info.path, info.problem);
            }
            Checkpoint checkpoint(rig_.engine(), rig_.files(), info.path);
            const std::string wrong = RankState::compare(checkpoint, info.step, 300, world_.apart);
            if (!wrong.empty()) {
                return fmt::format("P1 {}: {}: {}", when, info.path, wrong);
            }
            has_old = has_old || info.step == 1;
            has_new = has_new || info.step == 2;
        }
        if (!has_old && !(world_.at_path && has_new)) {
            return fmt::format("P3 {}: the checkpoint before is gone", when);
        }
        const bool any_saved = std::any_of(results.begin(), results.end(),
                                           [](const auto& one) { return one.saved(); });
        if (any_saved && !has_new) {
            return fmt::format("P2 {}: a rank called it saved, and it is not there", when);
        }
        const bool all_failed = std::all_of(results.begin(), results.end(), [](const auto& one) {
            return one.failed() && !is_uncertain(one);
        });
        if (all_failed && has_new) {
            return fmt::format("P8 {}: all ranks called it failed, and it is there", when);
        }
        return {};
    }

    [[nodiscard]] std::vector<CheckpointInfo> there() {
        if (world_.at_path) {
            std::string path = world_.folders.front();
            if (!world_.shape.exchanges && !is_there(rig_.files(), path)) {
                path = join(work_folder_of(path), "replaced");
            }
            return {Checkpoint(rig_.engine(), rig_.files(), path).info()};
        }
        return CheckpointStore(rig_.engine(), rig_.files(), world_.folders, {}).list();
    }

    // Fewer ranks go on, and nothing is left of what was not finished.
    [[nodiscard]] std::string check_next(test::Disks disks) {
        rig_.use(std::move(disks));
        world_.count = std::max(world_.count - 1, 2U);
        save(3, nullptr);
        for (const std::string& folder : world_.folders) {
            const std::string in = world_.at_path ? base::folder_of(folder) : folder;
            for (const std::string& name : rig_.files().list(in)) {
                if (name.starts_with(".penstock") || name.starts_with(".unfinished") ||
                    name.starts_with(".removed")) {
                    return fmt::format("P7: {}/{} was left", in, name);
                }
            }
        }
        const std::vector<CheckpointInfo> list = there();
        if (list.empty() || list.back().step != 3) {
            return "P2: the save after it is not there";
        }
        const auto latest = &list.back();
        Checkpoint checkpoint(rig_.engine(), rig_.files(), latest->path);
        std::string wrong = RankState::compare(checkpoint, 3, 300, world_.apart);
        return wrong.empty() ? RankState::compare_as_stock(*rig_.engine(), rig_.files(),
                                                           latest->path, 3, 300, world_.apart)
                             : wrong;
    }

    World world_;
    std::mt19937_64 random_;
    test::CrashRig rig_;
    std::vector<RankResult> results_;
    std::optional<test::Disks> cut_;
    std::vector<RankResult> at_cut_;
    std::uint64_t turns_ = 0;
    std::size_t keys_ = 0;
    bool on_time_ = true;
    std::string story_;
};

struct Explored {
    std::map<std::string, std::uint64_t> seen;   ///< how the runs ended
    std::map<std::string, std::uint64_t> wrong;  ///< each promise, "P1"
    std::string first;
};

// Runs until one breaks a promise, or, `all`, every one of them.
Explored explore(const World& world, const std::string& name, std::uint64_t runs,
                 bool all = false) {
    static const char* const asked = std::getenv("PENSTOCK_TEST_STATE");
    std::uint64_t turns = 200;
    Explored out;
    for (std::uint64_t seed = 1; seed <= runs && (all || out.first.empty()); ++seed) {
        const std::string state = fmt::format("{}:{}", name, seed);
        if (asked != nullptr && state != asked) {
            continue;
        }
        std::string wrong;
        std::string story;
        try {
            Run run(world, seed);
            run.happen(turns);
            wrong = run.check();
            story = run.story();
            const auto saved = std::count_if(run.results().begin(), run.results().end(),
                                             [](const auto& one) { return one.saved(); });
            ++out.seen[saved == world.count ? "all saved"
                       : saved == 0         ? "none saved"
                                            : "some saved"];
            if (saved == world.count) {
                turns = std::max<std::uint64_t>(run.turns(), 50);
                if (wrong.empty() && run.on_time() && run.keys() != 0) {
                    wrong = fmt::format("keys: {} are left in the mailbox", run.keys());
                }
            }
        } catch (const std::exception& error) {
            wrong = fmt::format("thrown: {}", error.what());
        }
        if (!wrong.empty()) {
            ++out.wrong[wrong.substr(0, 2)];
            out.first = out.first.empty()
                            ? fmt::format("PENSTOCK_TEST_STATE={}: {}\n  {}", state, wrong, story)
                            : out.first;
        }
    }
    return out;
}

void expect_promises(const World& world, const std::string& name, std::uint64_t runs) {
    const Explored explored = explore(world, name, runs);
    EXPECT_EQ(explored.first, "");
    for (const auto& [what, count] : explored.seen) {
        ::testing::Test::RecordProperty(what, std::to_string(count));
    }
    if (std::getenv("PENSTOCK_TEST_STATE") == nullptr) {
        EXPECT_TRUE(explored.seen.contains("all saved"));
        EXPECT_TRUE(explored.seen.contains("none saved"));
    }
}

// Enough to see each way of ending, however few states are wanted.
std::uint64_t runs(std::uint64_t share) {
    return std::max<std::uint64_t>(test::states_wanted() / share, 150);
}

TEST(CrashOfRanks, TwoRanks) {
    expect_promises({.count = 2}, "two", runs(200));
}

TEST(CrashOfRanks, ThreeRanks) {
    expect_promises({.count = 3}, "three", runs(200));
}

TEST(CrashOfRanks, FiveRanks) {
    expect_promises({.count = 5}, "five", runs(500));
}

TEST(CrashOfRanks, WithValuesOfTheirOwn) {
    expect_promises({.count = 3, .apart = true}, "apart", runs(200));
}

TEST(CrashOfRanks, AtAPath) {
    expect_promises({.count = 2, .folders = {"/ckpt/step-1"}, .at_path = true}, "path2", runs(400));
    expect_promises({.count = 3, .folders = {"/ckpt/step-1"}, .at_path = true}, "path3", runs(400));
}

TEST(CrashOfRanks, AtAPathWithoutExchange) {
    World world{.count = 3, .folders = {"/ckpt/step-1"}, .at_path = true};
    world.shape.exchanges = false;
    expect_promises(world, "aside", runs(400));
}

TEST(CrashOfRanks, SeveralFolders) {
    expect_promises({.count = 3, .folders = {"/0/ckpt", "/1/ckpt", "/0/more"}, .disks = 2},
                    "folders", runs(400));
}

// A harness that finds nothing proves nothing.
TEST(CrashOfRanksIsSeen, WithoutFolderSync) {
    World world;
    world.shape.syncs_names = false;
    const Explored explored = explore(world, "no_folder_sync", 100, true);
    EXPECT_GT(explored.wrong.count("P2") + explored.wrong.count("P3"), 0U) << explored.first;
}

TEST(CrashOfRanksIsSeen, WithoutFileSync) {
    World world;
    world.shape.syncs_data = false;
    const Explored explored = explore(world, "no_file_sync", 100, true);
    EXPECT_TRUE(explored.wrong.contains("P1")) << explored.first;
}

TEST(CrashOfRanksIsSeen, RanksThatOnlyLook) {
    World world;
    world.only_look = true;
    const Explored explored = explore(world, "only_look", 600);
    EXPECT_NE(explored.first, "");
}

}  // namespace
}  // namespace penstock::store
