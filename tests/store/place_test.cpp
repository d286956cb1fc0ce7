// SPDX-License-Identifier: Apache-2.0
// A store of one checkpoint at a path: what it replaces, what stays, and what is refused.
#include "store/keep/place.hpp"

#include "store/crash_state.hpp"
#include "store/keep/store_folder.hpp"
#include "support/crash_harness.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr const char* kPath = "/out/step-7";

StoreOptions at_path() {
    return {.shard_bytes = 6000, .at_path = true, .lock_wait_ms = 0};
}

class PlaceTest : public ::testing::Test {
protected:
    explicit PlaceTest(const simulation::DiskShape& shape = {}) : rig_(1, shape) {}

    CheckpointInfo save(std::uint64_t number, const std::string& path = kPath) {
        CheckpointStore store(rig_.engine(), files(), {path}, at_path());
        return store.save(NumberedState(number).state(), {.step = number});
    }
    std::string refusal(std::uint64_t number, const std::string& path = kPath) {
        try {
            static_cast<void>(save(number, path));
        } catch (const Error& error) {
            return error.what();
        }
        return "it was saved";
    }
    // Empty where the checkpoint of that number is at the path, and it alone.
    std::string wrong(std::uint64_t number) {
        Checkpoint checkpoint(rig_.engine(), files(), kPath);
        return compare(checkpoint, number);
    }
    void put(const std::string& path, std::uint64_t bytes = 1) {
        files().open(path, {.access = Access::kWrite, .create = true}).truncate(bytes);
    }
    [[nodiscard]] std::uint64_t bytes_of(const std::string& path) const {
        return files().status(path).bytes;
    }
    [[nodiscard]] const FileSystem& files() const { return rig_.files(); }

    test::CrashRig rig_;
};

class PlaceWithoutExchange : public PlaceTest {
protected:
    PlaceWithoutExchange() : PlaceTest({.exchanges = false}) {}
};

TEST_F(PlaceTest, TheFolderIsTheCheckpoint) {
    const CheckpointInfo first = save(1);
    EXPECT_EQ(first.path, kPath);
    EXPECT_EQ(wrong(1), "");
    EXPECT_THAT(files().list("/out"), ElementsAre("step-7"));
    const CheckpointInfo second = save(2);
    EXPECT_EQ(second.generation, first.generation + 1);
    EXPECT_EQ(second.note, "");
    EXPECT_EQ(wrong(2), "");
    EXPECT_THAT(files().list("/out"), ElementsAre("step-7"));
}

TEST_F(PlaceTest, OneStoreSavesAgainAndInTheBackground) {
    CheckpointStore store(rig_.engine(), files(), {kPath}, at_path());
    for (std::uint64_t number = 1; number < 4; ++number) {
        const NumberedState state(number);
        static_cast<void>(store.save_async(state.state(), {.step = number}).result());
        EXPECT_EQ(wrong(number), "");
    }
    EXPECT_THAT(files().list("/out"), ElementsAre("step-7"));
}

TEST_F(PlaceTest, NoNumberIsInTheNameOfTheWorkFolder) {
    for (int i = 0; i < 1000; ++i) {
        const std::string path = work_folder_of("/out/step-" + std::to_string(i));
        EXPECT_EQ(path.find_first_of("0123456789"), std::string::npos) << path;
        EXPECT_TRUE(path.starts_with("/out/.penstock-")) << path;
        EXPECT_NE(path, work_folder_of("/out/step-" + std::to_string(i + 1)));
    }
}

TEST_F(PlaceTest, WhatOthersHaveInTheFolderStays) {
    files().make_folder("/out");
    files().make_folder(kPath);
    files().make_folder("/out/step-7/logs");
    put("/out/step-7/logs/a", 5);
    put("/out/step-7/meta.pt", 7);
    files().symbolic_link("/nowhere", "/out/step-7/soft");
    for (std::uint64_t number = 1; number < 4; ++number) {
        EXPECT_EQ(save(number).note, "");
        EXPECT_EQ(wrong(number), "");
        EXPECT_EQ(bytes_of("/out/step-7/logs/a"), 5U);
        EXPECT_EQ(bytes_of("/out/step-7/meta.pt"), 7U);
        EXPECT_EQ(files().status("/out/step-7/meta.pt").links, 1U);
        EXPECT_EQ(files().status("/out/step-7/soft").kind, FileKind::kSymbolicLink);
        EXPECT_THAT(files().list("/out"), ElementsAre("step-7"));
    }
}

TEST_F(PlaceTest, AShardThatTheManifestDoesNotNameStays) {
    static_cast<void>(save(1));
    put("/out/step-7/shard-09999.safetensors", 3);
    EXPECT_EQ(save(2).note, "");
    EXPECT_EQ(bytes_of("/out/step-7/shard-09999.safetensors"), 3U);
}

TEST_F(PlaceTest, ACheckpointOfTorchIsReplaced) {
    files().make_folder("/out");
    files().make_folder(kPath);
    for (const char* name : {".metadata", "__0_0.distcp", "__12_3.distcp", "own_0.distcp", "x"}) {
        put(join(kPath, name));
    }
    EXPECT_EQ(save(1).note, "");
    EXPECT_EQ(wrong(1), "");
    const Names names = files().list(kPath);
    const auto has = [&](const char* name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    EXPECT_TRUE(has("own_0.distcp") && has("x"));
    EXPECT_FALSE(has(".metadata") || has("__0_0.distcp") || has("__12_3.distcp"));
}

TEST_F(PlaceTest, PiecesOfTorchWithoutTheirMetadataStay) {
    files().make_folder("/out");
    files().make_folder(kPath);
    put(join(kPath, "__0_0.distcp"));
    EXPECT_EQ(save(1).note, "");
    EXPECT_TRUE(is_there(files(), join(kPath, "__0_0.distcp")));
}

TEST_F(PlaceTest, WhatMayNotBeReplacedIsRefused) {
    CheckpointStore numbered(rig_.engine(), files(), {"/store"}, {.lock_wait_ms = 0});
    const std::string one = numbered.save(NumberedState(1).state(), {.step = 1}).path;
    EXPECT_THAT(refusal(2, "/store"), HasSubstr("it is the folder of a CheckpointStore"));
    EXPECT_THAT(refusal(2, one), HasSubstr("it is a checkpoint of a CheckpointStore"));
    EXPECT_THAT(refusal(2, "/"), HasSubstr("it is no path of a checkpoint"));
    files().make_folder("/out");
    put("/out/file");
    EXPECT_THAT(refusal(2, "/out/file"), HasSubstr("it is a file"));
    for (const char* name : {"shard-00001.safetensors", "model.safetensors.index.json"}) {
        files().make_folder(kPath);
        put(join(kPath, name));
        EXPECT_THAT(refusal(2), HasSubstr(name));
        files().remove(join(kPath, name));
        files().remove(kPath);
    }
    static_cast<void>(save(1));
    put(join(kPath, kManifestName), 9);
    EXPECT_THAT(refusal(2), HasSubstr("it is not known which files are its own"));
    EXPECT_THAT(files().list("/out"), ElementsAre("file", "step-7"));
}

TEST_F(PlaceTest, AFileOfOthersWithANameOfTheNewCheckpointIsRefused) {
    files().make_folder("/out");
    files().make_folder(kPath);
    CheckpointStore store(rig_.engine(), files(), {kPath}, at_path());
    const std::string other = join(kPath, "shard-00001.safetensors");
    SaveOptions options;
    options.progress = [&](std::uint64_t, std::uint64_t) {  // while the save runs
        if (!is_there(files(), other)) {
            put(other, 4);
        }
        return true;
    };
    try {
        static_cast<void>(store.save(NumberedState(1).state(), options));
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("move it away"));
    }
    EXPECT_EQ(bytes_of(other), 4U);
    EXPECT_THAT(files().list("/out"), ElementsAre("step-7"));
}

TEST_F(PlaceTest, AMetadataFileThatIsNotOfTorchIsRefused) {
    files().make_folder("/out");
    files().make_folder(kPath);
    put(join(kPath, ".metadata"), 3);
    EXPECT_THAT(refusal(1), HasSubstr("'.metadata', which is no file of torch"));
    EXPECT_EQ(bytes_of(join(kPath, ".metadata")), 3U);
}

TEST_F(PlaceTest, AWorkFolderThatIsALinkIsRefused) {
    files().make_folder("/out");
    files().make_folder("/store");
    const std::string other = join("/store", unfinished_name(1, "00000000000000ab"));
    files().make_folder(other);
    put(join(other, "shard-00001.safetensors"), 2);
    files().symbolic_link("/store", work_folder_of(kPath));
    EXPECT_THAT(refusal(1), HasSubstr("it is no folder"));
    EXPECT_EQ(bytes_of(join(other, "shard-00001.safetensors")), 2U);
}

// While a save runs, a file of others is replaced after it was linked.
TEST_F(PlaceTest, AFileThatOthersReplaceBeforeTheCommitIsTheirNewOne) {
    files().make_folder("/out");
    files().make_folder(kPath);
    for (const bool commits : {true, false}) {
        put(join(kPath, "log"), 1);
        CheckpointPlace place(*rig_.engine(), files(), kPath);
        const StoreLock lock = place.lock(0);  // of the work folder
        static_cast<void>(place.begin());
        const std::string unfinished = join(place.work(), unfinished_name(1, "00000000000000ab"));
        files().make_folder(unfinished);
        place.carry(unfinished);
        put("/out/next", 2);
        files().rename("/out/next", join(kPath, "log"));
        if (commits) {
            place.put(unfinished);
        }
        place.settle();
        EXPECT_THAT(place.left(), ElementsAre());
        EXPECT_EQ(bytes_of(join(kPath, "log")), 2U);
        EXPECT_THAT(files().list(place.work()), ElementsAre(std::string(kLockName)));
    }
}

TEST_F(PlaceTest, TwoSavesToOnePathDoNotRunAtOnce) {
    CheckpointStore store(rig_.engine(), files(), {kPath}, at_path());
    SaveOptions options;
    std::string second;
    options.progress = [&](std::uint64_t, std::uint64_t) {
        second = refusal(2);
        return true;
    };
    static_cast<void>(store.save(NumberedState(1).state(), options));
    EXPECT_THAT(second, HasSubstr("this process has it open for saving"));
    EXPECT_EQ(wrong(1), "");
    EXPECT_EQ(save(2).note, "");
}

TEST_F(PlaceTest, AStoreAtAPathOnlySaves) {
    CheckpointStore store(rig_.engine(), files(), {kPath}, at_path());
    static_cast<void>(store.save(NumberedState(1).state(), {}));
    EXPECT_TRUE(store.list().empty());
    EXPECT_FALSE(store.latest());
    EXPECT_THROW(static_cast<void>(store.collect()), Error);
    EXPECT_THROW(store.remove(1), Error);
    EXPECT_THROW(CheckpointStore(rig_.engine(), files(), {"/a", "/b"}, at_path()), Error);
}

TEST_F(PlaceWithoutExchange, TheOlderOneIsAsideForAMomentAndTheSaveSaysSo) {
    EXPECT_EQ(save(1).note, "");
    EXPECT_THAT(save(2).note, HasSubstr("cannot exchange two names"));
    EXPECT_EQ(wrong(2), "");
    EXPECT_THAT(files().list("/out"), ElementsAre("step-7"));
}

// A process was killed between the two renames. The program that was started again made the folder.
TEST_F(PlaceWithoutExchange, TheOlderOneComesBackToAFolderThatWasMadeSince) {
    static_cast<void>(save(1));
    const std::string aside = join(work_folder_of(kPath), "replaced");
    for (const bool empty : {true, false}) {
        files().make_folder(work_folder_of(kPath));
        files().rename(kPath, aside);
        files().make_folder(kPath);
        CheckpointStore store(rig_.engine(), files(), {kPath}, at_path());
        SaveOptions cancelled;
        cancelled.progress = [](std::uint64_t, std::uint64_t) { return false; };
        if (empty) {
            EXPECT_THROW(static_cast<void>(store.save(NumberedState(2).state(), cancelled)), Error);
            EXPECT_EQ(wrong(1), "");
            EXPECT_THAT(files().list("/out"), ElementsAre("step-7"));
            continue;
        }
        put(join(kPath, "log"), 3);
        EXPECT_THAT(refusal(2), HasSubstr("the older checkpoint is"));
        EXPECT_THAT(files().list(kPath), ElementsAre("log"));
        EXPECT_TRUE(is_there(files(), join(aside, std::string(kManifestName))));
    }
}

// ---- power cuts

struct PlaceLife {
    std::string name;
    simulation::DiskShape shape = {};
    bool stock = false;  ///< a checkpoint of torch's own is there before
};

class Life {
public:
    explicit Life(const PlaceLife& life)
        : life_(life), rig_(1, life.shape), recording_((plant(), rig_)) {}

    void live() {
        for (std::uint64_t number = 1; number < 5; ++number) {
            recording_.step([&] { save(number); }, [&] { return test::Present{number}; });
        }
        recording_.finish();
    }
    test::CrashReport explore(std::uint64_t states) {
        return test::explore(rig_, recording_, life_.name, states,
                             [this](const test::CrashState& state) { return check(state); });
    }
    test::CrashRig& rig() { return rig_; }
    void save(std::uint64_t number) {
        CheckpointStore store(rig_.engine(), rig_.files(), {kPath}, at_path());
        static_cast<void>(store.save(NumberedState(number).state(), {.step = number}));
    }
    /// Empty where what others have is in its place, or, `on_its_way`, in the work folder.
    std::string others(bool on_its_way) {
        const FileSystem& files = rig_.files();
        for (const auto& [name, bytes] : {std::pair("meta.pt", 7), std::pair("logs/a", 5)}) {
            Names at{join(kPath, name)};
            const std::string work = work_folder_of(kPath);
            for (const std::string& left :
                 on_its_way&& is_there(files, work) ? files.list(work) : Names()) {
                at.push_back(join(join(work, left), name));
            }
            const bool found = std::any_of(at.begin(), at.end(), [&, size = bytes](const auto& p) {
                return is_there(files, p) &&
                       files.status(p).bytes == static_cast<std::uint64_t>(size);
            });
            if (!found) {
                return std::string("P7: of others, lost: ") + name;
            }
        }
        return {};
    }

private:
    void plant() {
        const FileSystem& files = rig_.files();
        for (const char* folder : {"/out", kPath, "/out/step-7/logs"}) {
            files.make_folder(folder);
        }
        const auto put = [&](const std::string& path, std::uint64_t bytes) {
            files.open(path, {.access = Access::kWrite, .create = true}).truncate(bytes);
        };
        put("/out/step-7/meta.pt", 7);
        put("/out/step-7/logs/a", 5);
        if (life_.stock) {
            put("/out/step-7/.metadata", 3);
            put("/out/step-7/__0_0.distcp", 3);
            put("/out/step-7/__1_0.distcp", 3);
        }
        rig_.disks().front()->settle();
    }

    // The number of the checkpoint in a folder, 0 for none; what is wrong with it is thrown.
    std::uint64_t number_in(const std::string& folder) {
        const FileSystem& files = rig_.files();
        if (!is_there(files, join(folder, kManifestName))) {
            if (life_.stock && !(is_there(files, join(folder, ".metadata")) &&
                                 is_there(files, join(folder, "__0_0.distcp")) &&
                                 is_there(files, join(folder, "__1_0.distcp")))) {
                throw std::runtime_error("the checkpoint of torch is not whole");
            }
            return 0;
        }
        Checkpoint checkpoint(rig_.engine(), files, folder);
        const std::uint64_t number = checkpoint.info().step;
        if (const std::string wrong = compare(checkpoint, number); !wrong.empty()) {
            throw std::runtime_error(wrong);
        }
        const Manifest manifest = read_manifest(*rig_.engine(), files, folder);
        for (const std::string& name : files.list(folder)) {
            const bool known = name == kManifestName || name == "meta.pt" || name == "logs" ||
                               name == "model.safetensors.index.json" ||
                               std::any_of(manifest.shards.begin(), manifest.shards.end(),
                                           [&](const Shard& one) { return one.file == name; });
            if (!known) {
                throw std::runtime_error(name + " is in it as well");
            }
        }
        return number;
    }

    std::string check(const test::CrashState& state) {
        const FileSystem& files = rig_.files();
        std::string at = kPath;
        if (!life_.shape.exchanges && !is_there(files, at)) {
            at = join(work_folder_of(kPath), "replaced");
        }
        const std::uint64_t before = state.before.empty() ? 0 : state.before.back();
        const std::uint64_t after = state.after.empty() ? 0 : state.after.back();
        const std::uint64_t found = number_in(at);
        if (found != before && found != after) {
            return "P2: " + std::to_string(found) + ", acknowledged " + std::to_string(before);
        }
        if (std::string lost = others(true); !lost.empty()) {
            return lost;
        }
        if (state.seed % 4 != 1) {
            return {};
        }
        save(99);
        if (files.list("/out") != Names{"step-7"}) {
            return "P7: the next save left " + files.list("/out").front();
        }
        rig_.use(test::CrashRig::crashed(rig_.disks(), state.seed));
        if (number_in(kPath) != 99) {
            return "P2: the save after the crash did not last";
        }
        return others(false);
    }

    PlaceLife life_;
    test::CrashRig rig_;
    test::Recording recording_;
};

class CrashOfPlace : public ::testing::TestWithParam<PlaceLife> {};

TEST_P(CrashOfPlace, KeepsItsPromisesAtEveryOperation) {
    Life life(GetParam());
    life.live();
    const test::CrashReport report = life.explore(test::states_wanted() / 12);
    EXPECT_EQ(report.violations, 0U)
        << report.violations << " of " << report.states << " states; the first: " << report.first;
    RecordProperty("states", std::to_string(report.states));
}

INSTANTIATE_TEST_SUITE_P(Lives, CrashOfPlace,
                         ::testing::Values(PlaceLife{"place"}, PlaceLife{"place_stock", {}, true},
                                           PlaceLife{"place_aside", {.exchanges = false}}),
                         [](const auto& life) { return life.param.name; });

// A harness that finds nothing proves nothing.
TEST(CrashOfPlaceIsSeen, WithoutFolderSync) {
    Life life({"place_no_folder_sync", {.syncs_names = false}});
    life.live();
    const test::CrashReport report =
        life.explore(std::clamp<std::uint64_t>(test::states_wanted() / 30, 600, 3000));
    EXPECT_GT(report.violations, report.states / 20) << report.states;
}

// The save fails, and the older checkpoint is there, or it is there.
TEST(PlaceFaults, AtEachOperation) {
    std::uint64_t failures = 0;
    test::fail_each_operation(
        [](test::CrashRig& rig) {
            CheckpointStore store(rig.engine(), rig.files(), {kPath}, at_path());
            static_cast<void>(store.save(NumberedState(1).state(), {.step = 1}));
            rig.files()
                .open("/out/step-7/meta.pt", {.access = Access::kWrite, .create = true})
                .truncate(7);
            rig.files().make_folder("/out/step-7/logs");
        },
        [](test::CrashRig& rig) {
            CheckpointStore store(rig.engine(), rig.files(), {kPath}, at_path());
            static_cast<void>(store.save(NumberedState(2).state(), {.step = 2}));
        },
        [&](test::CrashRig& rig, bool failed) {
            Checkpoint checkpoint(rig.engine(), rig.files(), kPath);
            const std::uint64_t step = checkpoint.info().step;
            EXPECT_EQ(compare(checkpoint, step), "");
            EXPECT_EQ(step, failed ? 1U : 2U);
            EXPECT_TRUE(is_there(rig.files(), "/out/step-7/meta.pt"));
            CheckpointStore store(rig.engine(), rig.files(), {kPath}, at_path());
            static_cast<void>(store.save(NumberedState(3).state(), {.step = 3}));
            EXPECT_EQ(rig.files().list("/out"), Names{"step-7"});
            EXPECT_TRUE(is_there(rig.files(), "/out/step-7/meta.pt"));
            EXPECT_TRUE(is_there(rig.files(), "/out/step-7/logs"));
            failures += failed ? 1 : 0;
        });
    EXPECT_GT(failures, 20U);
}

}  // namespace
}  // namespace penstock::store
