// SPDX-License-Identifier: Apache-2.0
// A store whose disks lose their power, or whose process is killed, at every operation of a life of
// saves, pins and removals. What a new store then finds is held against the promises of
// docs/checkpoint.md. The same store on disks that lie about their syncs must be caught.
#include "store/crash_state.hpp"
#include "store/keep/store_folder.hpp"
#include "support/crash_harness.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

struct Life {
    std::string name;
    StoreOptions options;
    std::vector<std::string> folders = {"/ckpt"};
    std::size_t disks = 1;
    bool inline_writes = true;
    simulation::DiskShape shape = {};
    bool links = false;  ///< to a decoy, under names that a store collects
};

constexpr const char* kPlanted = ".removed-00000000-step-0";

StoreOptions small_shards(std::uint32_t keep, std::uint32_t keep_every = 0) {
    StoreOptions options;
    options.keep = keep;
    options.keep_every = keep_every;
    options.shard_bytes = 6000;
    options.lock_wait_ms = 0;
    return options;
}

test::Present generations(const CheckpointStore& store) {
    test::Present present;
    for (const CheckpointInfo& info : store.list()) {
        if (info.problem.empty()) {
            present.push_back(info.generation);
        }
    }
    return present;
}

/// One store's life on a rig, recorded, and the check of its states.
class StoreLife {
public:
    explicit StoreLife(const Life& life)
        : life_(life),
          rig_(life.disks, life.shape, life.inline_writes),
          recording_((plant(), rig_)) {}

    void save(CheckpointStore& store, bool pinned = false) {
        recording_.step(
            [&] {
                const std::uint64_t number = ++numbers_;
                // Steps go back now and then: what is newest is not told by them.
                const auto info = store.save(NumberedState(number).state(),
                                             {.step = 100 - number % 3, .pinned = pinned});
                number_of_[info.generation] = number;
            },
            [&] { return generations(store); });
    }
    void step(CheckpointStore& store, const std::function<void()>& work) {
        recording_.step(work, [&] { return generations(store); });
    }
    void live() {
        {
            CheckpointStore store = open();
            for (int i = 0; i < 4; ++i) {
                save(store);
            }
            const std::uint64_t kept = store.latest()->generation;
            step(store, [&] { store.pin(kept); });
            save(store);
            save(store, true);
            save(store);
            step(store, [&] { store.pin(kept, false); });
            step(store, [&] { store.remove(kept); });
        }
        CheckpointStore store = open();  // by another process
        for (int i = 0; i < 3; ++i) {
            save(store);
        }
        recording_.finish();
    }
    test::CrashReport explore(std::uint64_t states) {
        return test::explore(rig_, recording_, life_.name, states,
                             [this](const test::CrashState& state) { return check(state); });
    }
    CheckpointStore open() { return {rig_.engine(), rig_.files(), life_.folders, life_.options}; }
    test::CrashRig& rig() { return rig_; }

private:
    // Durable before anything is recorded.
    void plant() {
        if (!life_.links) {
            return;
        }
        const FileSystem& files = rig_.files();
        for (const char* folder : {"/decoy", "/ckpt"}) {
            files.make_folder(folder);
        }
        static_cast<void>(files.open("/decoy/diary", {.access = Access::kWrite, .create = true}));
        files.symbolic_link("/decoy", std::string("/ckpt/") + kPlanted);
        files.symbolic_link("/decoy/diary", "/ckpt/.unfinished-00000000-0123456789abcdef");
        for (const auto& disk : rig_.disks()) {
            disk->settle();
        }
    }

    std::string check(const test::CrashState& state) {
        CheckpointStore store = open();
        if (life_.links && rig_.files().list("/decoy") != std::vector<std::string>{"diary"}) {
            return "P7: what a link leads to was removed";
        }
        std::vector<CheckpointInfo> skipped;
        const auto latest = store.latest(&skipped);
        if (!skipped.empty()) {
            return fmt::format("P1: {} is there and not whole: {}", skipped[0].path,
                               skipped[0].problem);
        }
        if (std::string found = check_latest(state, latest); !found.empty()) {
            return found;
        }
        if (std::string found = check_list(state, store); !found.empty()) {
            return found;
        }
        return state.seed % 8 == 1 ? check_next(store, latest, state.seed) : "";
    }

    std::string check_latest(const test::CrashState& state,
                             const std::optional<CheckpointInfo>& latest) {
        const std::uint64_t before = state.before.empty() ? 0 : state.before.back();
        const std::uint64_t after = state.after.empty() ? 0 : state.after.back();
        const std::uint64_t found = latest ? latest->generation : 0;
        if (found != before && found != after) {
            return fmt::format("{}: the latest is generation {}, {} was acknowledged",
                               found == 0 ? "P3" : "P2", found, before);
        }
        return {};
    }

    // All that must be there is, nothing else, and each is what was saved.
    std::string check_list(const test::CrashState& state, CheckpointStore& store) {
        const std::vector<CheckpointInfo> list = store.list();
        const auto has = [](const test::Present& present, std::uint64_t generation) {
            return std::binary_search(present.begin(), present.end(), generation);
        };
        std::size_t wanted = 0;
        for (const std::uint64_t generation : state.before) {
            wanted += has(state.after, generation) ? 1 : 0;
        }
        for (const CheckpointInfo& info : list) {
            if (!info.problem.empty()) {
                return fmt::format("P1: {}: {}", info.path, info.problem);
            }
            const bool before = has(state.before, info.generation);
            const bool after = has(state.after, info.generation);
            if (!before && !after) {
                return fmt::format("P7: generation {} is back", info.generation);
            }
            wanted -= before && after ? 1 : 0;
            // All of them now and then; the newest always.
            if (state.seed % 4 != 0 && &info != &list.back()) {
                continue;
            }
            Checkpoint checkpoint(rig_.engine(), rig_.files(), info.path);
            const std::string wrong = compare(checkpoint, number_of_.at(info.generation));
            if (!wrong.empty()) {
                return fmt::format("P1: generation {}: {}", info.generation, wrong);
            }
        }
        return wanted == 0 ? "" : fmt::format("P3: {} checkpoints are missing", wanted);
    }

    // A save goes well on what is left, what was unfinished is gone, and the save survives.
    std::string check_next(CheckpointStore& store, const std::optional<CheckpointInfo>& before,
                           std::uint64_t seed) {
        const auto info = store.save(NumberedState(99).state(), {.step = 99});
        if (before && info.generation <= before->generation) {
            return fmt::format("P6: generation {} after {}", info.generation, before->generation);
        }
        for (const std::string& folder : life_.folders) {
            for (const std::string& name : rig_.files().list(folder)) {
                const bool link =
                    rig_.files().status(folder + "/" + name).kind == FileKind::kSymbolicLink;
                if (!link && (name.starts_with(".unfinished") || name.starts_with(".removed"))) {
                    return fmt::format("P7: {}/{} was left", folder, name);
                }
            }
        }
        if (std::string left = parts_left(); !left.empty()) {
            return left;
        }
        if (life_.links && rig_.files().list("/decoy") != std::vector<std::string>{"diary"}) {
            return "P7: the save after the crash removed what a link leads to";
        }
        rig_.use(test::CrashRig::crashed(rig_.disks(), seed));
        CheckpointStore again = open();
        const auto latest = again.latest();
        if (!latest || latest->generation != info.generation) {
            return "P2: the save after the crash did not last";
        }
        Checkpoint checkpoint(rig_.engine(), rig_.files(), info.path);
        const std::string wrong = compare(checkpoint, 99);
        return wrong.empty() ? "" : "P1: the save after the crash: " + wrong;
    }

    // A crash never makes the store's own shards look like those of another one.
    std::string parts_left() {
        for (std::size_t i = 1; i < life_.folders.size(); ++i) {
            const std::string& folder = life_.folders[i];
            for (const std::string& name : rig_.files().list(folder)) {
                const std::string checkpoint = name.substr(0, name.rfind('.'));
                if (!name.starts_with(".") &&
                    !is_there(rig_.files(), life_.folders.front() + "/" + checkpoint)) {
                    return fmt::format("P7: {}/{} was left", folder, name);
                }
            }
        }
        return {};
    }

    Life life_;
    test::CrashRig rig_;
    test::Recording recording_;
    std::uint64_t numbers_ = 0;
    std::map<std::uint64_t, std::uint64_t> number_of_;  ///< by generation
};

test::CrashReport crash_store(const Life& life, std::uint64_t states) {
    StoreLife store(life);
    store.live();
    return store.explore(states);
}

std::vector<Life> lives() {
    Life copies{"copies", small_shards(2)};
    copies.options.incremental = false;
    copies.shape.preallocates = false;
    Life several{"folders", small_shards(2), {"/0/ckpt", "/1/ckpt", "/0/more"}, 2};
    Life threads{"threads", small_shards(2)};
    threads.inline_writes = false;
    Life links{"links", small_shards(1)};
    links.links = true;
    return {{"keep_1", small_shards(1)},
            {"keep_2", small_shards(2)},
            {"keep_all", small_shards(0)},
            {"keep_every", small_shards(1, 3)},
            copies,
            several,
            threads,
            links};
}

class CrashOfStore : public ::testing::TestWithParam<Life> {};

TEST_P(CrashOfStore, KeepsItsPromisesAtEveryOperation) {
    const std::uint64_t share = GetParam().inline_writes ? 6 : 30;
    const test::CrashReport report = crash_store(GetParam(), test::states_wanted() / share);
    EXPECT_EQ(report.violations, 0U)
        << report.violations << " of " << report.states << " states; the first: " << report.first;
    RecordProperty("states", std::to_string(report.states));
}

INSTANTIATE_TEST_SUITE_P(Lives, CrashOfStore, ::testing::ValuesIn(lives()),
                         [](const auto& life) { return life.param.name; });

// Few are enough to see it; fewer for sanitizers, which are slow.
std::uint64_t states_to_see() {
    return std::clamp<std::uint64_t>(test::states_wanted() / 30, 600, 3000);
}

// A harness that finds nothing proves nothing.
TEST(CrashOfStoreIsSeen, WithoutFolderSync) {
    Life life{"no_folder_sync", small_shards(2)};
    life.shape.syncs_names = false;
    const test::CrashReport report = crash_store(life, states_to_see());
    EXPECT_GT(report.violations, report.states / 10) << report.states;
    EXPECT_GT(report.count("P2") + report.count("P3"), 0U) << report.first;
}

TEST(CrashOfStoreIsSeen, WithoutFileSync) {
    Life life{"no_file_sync", small_shards(2)};
    life.shape.syncs_data = false;
    const test::CrashReport report = crash_store(life, states_to_see());
    EXPECT_GT(report.violations, report.states / 10) << report.states;
    EXPECT_GT(report.count("P1"), 0U) << report.first;
}

}  // namespace
}  // namespace penstock::store
