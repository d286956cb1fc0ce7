// SPDX-License-Identifier: Apache-2.0
// What the store promises, each promise a test by its name, and what goes wrong with a message.
#include "store/keep/retention.hpp"
#include "store/keep/store_folder.hpp"
#include "store/stock_view.hpp"
#include "store/store_support.hpp"
#include "support.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::store {
namespace {

using test::error_of;
using test::expect_holds;
using test::kNoValues;
using test::Tensors;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const StoreOptions kSmall{.keep = 2, .shard_bytes = 4096, .lock_wait_ms = 0};

// On a fake disk, all on the caller's thread.
class StorePromise : public ::testing::Test {
protected:
    [[nodiscard]] CheckpointStore store(const StoreOptions& options = kSmall) {
        return {rig_.engine(), rig_.files(), {"/store"}, options};
    }
    [[nodiscard]] std::vector<std::string> leftovers() {
        return scan_folder(rig_.files(), "/store").leftovers;
    }
    void expect_latest(std::uint64_t generation, const Tensors& tensors) {
        const auto latest = store().latest();
        ASSERT_TRUE(latest);
        EXPECT_EQ(latest->generation, generation);
        expect_holds(*rig_.engine(), rig_.files(), latest->path, tensors);
    }
    [[nodiscard]] simulation::FakeDisk& disk() { return *rig_.disks().front(); }

    test::CrashRig rig_;
    Tensors old_{{600, 3, 900, 0, 1500}, 1};
    Tensors new_{{600, 3, 900, 0, 1500}, 2};
};

TEST_F(StorePromise, P1AtomicAReaderSeesAllOrNothing) {
    // Somebody looks before every operation of a save: never more, and never less, than one of two.
    store().save(old_.state(), {.step = 10});
    std::uint64_t looks = 0;
    std::uint64_t newer = 0;
    rig_.disks().front()->set_watch([&](const simulation::DiskOperation&) {
        test::CrashRig reader;
        reader.use(test::CrashRig::killed(rig_.disks()));
        CheckpointStore other(reader.engine(), reader.files(), {"/store"}, kSmall);
        const auto latest = other.latest();
        ASSERT_TRUE(latest);
        expect_holds(*reader.engine(), reader.files(), latest->path,
                     latest->step == 10 ? old_ : new_);
        ++looks;
        newer += latest->step == 20 ? 1 : 0;
    });
    store().save(new_.state(), {.step = 20});
    rig_.disks().front()->set_watch({});
    EXPECT_GT(looks, 20U);
    EXPECT_GT(newer, 0U);
    EXPECT_LT(newer, looks);
}

TEST_F(StorePromise, P2DurableWhenSaveReturns) {
    store().save(old_.state(), {.step = 10});
    store().save(new_.state(), {.step = 20});
    const test::Disks disks = rig_.disks();
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        rig_.use(test::CrashRig::crashed(disks, seed));
        expect_latest(2, new_);
        const auto all = store().list();
        ASSERT_EQ(all.size(), 2U);
        expect_holds(*rig_.engine(), rig_.files(), all.front().path, old_);
    }
}

TEST_F(StorePromise, P3NothingIsLostWhileTheNextIsWritten) {
    StoreOptions options = kSmall;
    options.keep = 1;
    store(options).save(old_.state(), {.step = 10});
    const test::Disks before = test::CrashRig::killed(rig_.disks());
    for (std::uint64_t at = 0;; ++at) {
        rig_.use(test::CrashRig::killed(before));
        const std::uint64_t first = disk().operations();
        disk().cut_off_at(first + at);
        bool saved = true;
        try {
            store(options).save(new_.state(), {.step = 20});
        } catch (const Error&) {
            saved = false;
        }
        const bool through = disk().operations() <= first + at;
        rig_.use(test::CrashRig::crashed(rig_.disks(), at + 1));
        const auto latest = store(options).latest();
        ASSERT_TRUE(latest) << "cut off at operation " << at;
        EXPECT_TRUE(latest->generation == 2 || !saved) << "cut off at operation " << at;
        expect_holds(*rig_.engine(), rig_.files(), latest->path,
                     latest->generation == 1 ? old_ : new_);
        if (through || HasFailure()) {
            break;
        }
    }
}

TEST_F(StorePromise, P4EachSumIsBoundToItsPlace) {
    store().save(old_.state(), {.step = 10});
    const Manifest one = read_manifest(*rig_.engine(), rig_.files(), store().latest()->path);
    StoreOptions whole = kSmall;
    whole.incremental = false;
    store(whole).save(old_.state(), {.step = 10});
    const Manifest two = read_manifest(*rig_.engine(), rig_.files(), store().latest()->path);
    // The same content in another file of another generation sums to something else.
    std::uint64_t sums = 0;
    for (std::size_t i = 0; i < one.tensors.size(); ++i) {
        const Slice& a = one.tensors[i].slices.front();
        const Slice& b = two.tensors[i].slices.front();
        ASSERT_EQ(a.sums.size(), b.sums.size());
        EXPECT_EQ(a.begin, b.begin);
        for (std::size_t k = 0; k < a.sums.size(); ++k) {
            EXPECT_NE(a.sums[k], b.sums[k]);
            ++sums;
        }
    }
    EXPECT_EQ(sums, 4U);
    EXPECT_NE(one.shards.front().id, two.shards.front().id);
    EXPECT_NE(one.shards.front().header_sum, two.shards.front().header_sum);
}

TEST_F(StorePromise, P5ErrorsOfAnyOperationFailTheSave) {
    store().save(old_.state(), {.step = 10});
    const test::Disks before = test::CrashRig::killed(rig_.disks());
    for (const int refused : {EIO, ENOSPC}) {
        for (std::uint64_t at = 0;; ++at) {
            rig_.use(test::CrashRig::killed(before));
            const std::uint64_t target = disk().operations() + at;
            bool met = false;
            bool sync = false;
            disk().set_operation_faults([&](const simulation::DiskOperation& operation) {
                const bool here = operation.number == target;
                met = met || here;
                sync = sync || (here && operation.call == simulation::DiskCall::kSync);
                return here ? refused : 0;
            });
            bool saved = true;
            try {
                store().save(new_.state(), {.step = 20});
            } catch (const Error& error) {
                saved = false;
                EXPECT_EQ(error.system_errno(), refused) << error.what();
            }
            disk().set_operation_faults({});
            EXPECT_FALSE(sync && saved) << "a failed sync at operation " << at;
            expect_latest(saved ? 2 : 1, saved ? new_ : old_);
            EXPECT_THAT(leftovers(), IsEmpty()) << "after an error of operation " << at;
            if (!met || HasFailure()) {
                break;
            }
        }
    }
}

TEST_F(StorePromise, P6LatestFallsBackToTheNewestWholeAndSaysWhy) {
    store().save(old_.state(), {.step = 10});
    store().save(new_.state(), {.step = 5});  // went back: newer all the same
    expect_latest(2, new_);
    const std::string path = store().latest()->path;
    rig_.files().remove(join(path, "shard-00002.safetensors"));
    std::vector<CheckpointInfo> skipped;
    const auto latest = store().latest(&skipped);
    ASSERT_TRUE(latest);
    EXPECT_EQ(latest->generation, 1U);
    ASSERT_EQ(skipped.size(), 1U);
    EXPECT_EQ(skipped.front().generation, 2U);
    EXPECT_THAT(skipped.front().problem, HasSubstr("shard-00002.safetensors is missing"));
    // Cut short, flipped, gone: every damage is reported.
    EXPECT_TRUE(disk().damage(join(latest->path, kManifestName),
                              [](std::vector<std::byte>& b) { b[b.size() / 2] ^= std::byte{1}; }));
    EXPECT_FALSE(store().latest(&skipped));
    ASSERT_EQ(skipped.size(), 2U);
    EXPECT_THAT(skipped.back().problem, HasSubstr("manifest"));
    rig_.files().remove(join(latest->path, kManifestName));
    EXPECT_FALSE(store().latest(&skipped));
    EXPECT_THAT(skipped.back().problem, HasSubstr("manifest.json is missing"));
    EXPECT_EQ(store().list().size(), 2U);
    // A new one is newer than all of them.
    EXPECT_EQ(store().save(old_.state(), {.step = 1}).generation, 3U);
    expect_latest(3, old_);
}

TEST_F(StorePromise, P7RetentionKeepsNewestEveryAndPinned) {
    StoreOptions options = kSmall;
    options.keep = 2;
    options.keep_every = 4;
    options.read_back = false;  // or one more may stay
    CheckpointStore store = this->store(options);
    for (std::uint64_t i = 1; i <= 9; ++i) {
        old_.change(0, i);
        store.save(old_.state(), {.step = i, .pinned = i == 2});
    }
    std::vector<std::uint64_t> left;
    for (const CheckpointInfo& info : store.list()) {
        left.push_back(info.generation);
        EXPECT_EQ(info.problem, "");
        EXPECT_EQ(info.pinned, info.generation == 2);
    }
    EXPECT_THAT(left, ElementsAre(2, 4, 8, 9));
    store.pin(2, false);
    store.pin(8);
    old_.change(0, 10);
    store.save(old_.state());
    old_.change(0, 11);
    store.save(old_.state());
    left.clear();
    for (const CheckpointInfo& info : store.list()) {
        left.push_back(info.generation);
    }
    EXPECT_THAT(left, ElementsAre(4, 8, 10, 11));
    EXPECT_THAT(leftovers(), IsEmpty());
    store.remove(10);
    EXPECT_THAT(error_of([&] { store.remove(11); }).what(), HasSubstr("newest whole"));
    EXPECT_THAT(error_of([&] { store.remove(8); }).what(), HasSubstr("pinned"));
    EXPECT_THAT(error_of([&] { store.remove(99); }).what(),
                AllOf(HasSubstr("generation 99"), HasSubstr("the newest of generation 11")));
    EXPECT_EQ(store.list().size(), 3U);
}

TEST_F(StorePromise, P7WhatIsUnfinishedGoesOnlyWhenItsOwnerIsDead) {
    CheckpointStore owner = store();
    owner.save(old_.state());
    rig_.files().make_folder("/store/.unfinished-00000002-0123456789abcdef");
    CheckpointStore second = store();
    const Error refused = error_of([&] { second.save(new_.state()); });
    EXPECT_EQ(refused.system_errno(), EWOULDBLOCK);
    EXPECT_THAT(refused.what(), AllOf(HasSubstr("this process"), HasSubstr("close() that one"),
                                      HasSubstr("/store")));
    EXPECT_THROW(second.collect(), Error);
    EXPECT_EQ(leftovers().size(), 1U);
    EXPECT_EQ(second.latest()->generation, 1U);  // reading needs no lock
    { const CheckpointStore gone = std::move(owner); }
    EXPECT_EQ(second.save(new_.state()).generation, 3U);  // past the unfinished one's number
    EXPECT_THAT(leftovers(), IsEmpty());
}

TEST_F(StorePromise, TheOwnerOfTheLockIsNamed) {
    store().save(old_.state());
    const FileLock foreign = rig_.files().lock("/store/.lock");  // not a store's of this process
    CheckpointStore second = store();
    const Error refused = error_of([&] { second.save(new_.state()); });
    EXPECT_EQ(refused.system_errno(), EWOULDBLOCK);
    EXPECT_THAT(refused.what(), AllOf(HasSubstr("process " + std::to_string(::getpid())),
                                      HasSubstr(" on "), HasSubstr("/store")));
}

// Each folder that is made survives a power cut before there is something in it.
TEST_F(StorePromise, ParentsOfTheFolderAreMadeDurably) {
    const auto save = [&](test::CrashRig& rig) {
        CheckpointStore made(rig.engine(), rig.files(), {"/runs/exp/ckpt"}, kSmall);
        EXPECT_FALSE(made.latest());
        return made.save(old_.state());
    };
    const CheckpointInfo info = save(rig_);
    EXPECT_EQ(info.path, "/runs/exp/ckpt/00000001-step-0");
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
        test::CrashRig after;
        after.use(test::CrashRig::crashed(rig_.disks(), seed));
        const CheckpointStore found(after.engine(), after.files(), {"/runs/exp/ckpt"}, kSmall);
        ASSERT_TRUE(found.latest()) << seed;
        expect_holds(*after.engine(), after.files(), found.latest()->path, old_);
    }
    rig_.files().open("/file", {.access = Access::kWrite, .create = true}).close();
    EXPECT_EQ(error_of([&] {
                  const CheckpointStore none(rig_.engine(), rig_.files(), {"/file"}, kSmall);
              }).system_errno(),
              ENOTDIR);
}

TEST_F(StorePromise, P8SlicesOfGlobalTensors) {
    const std::vector<std::byte> data = support::pattern(64, 3);
    const std::span<const std::byte> all = data;
    State state;
    state.tensors = {
        {"w", "F32", {2, 4}, all.first(32), {4, 4}, {0, 0}},
        {"w", "F32", {2, 4}, all.last(32), {4, 4}, {2, 0}},
    };
    const CheckpointInfo info = store().save(state);
    EXPECT_EQ(info.tensors, 1U);
    const Manifest manifest = read_manifest(*rig_.engine(), rig_.files(), info.path);
    ASSERT_EQ(manifest.tensors.size(), 1U);
    EXPECT_THAT(manifest.tensors[0].shape, ElementsAre(4, 4));
    ASSERT_EQ(manifest.tensors[0].slices.size(), 2U);
    EXPECT_THAT(manifest.tensors[0].slices[1].offset, ElementsAre(2, 0));
    EXPECT_NE(manifest.tensors[0].slices[0].shard, manifest.tensors[0].slices[1].shard);
    EXPECT_EQ(test::read_as_stock(*rig_.engine(), rig_.files(), info.path).at("w").data, data);
    // Half of a tensor is a checkpoint of one rank; the same half twice is a mistake.
    state.tensors[1].global_offset = {1, 0};
    EXPECT_THAT(error_of([&] { store().save(state); }).what(),
                AllOf(HasSubstr("'w'"), HasSubstr("overlap")));
    EXPECT_EQ(store().save(state = {{state.tensors[0]}}).tensor_bytes, 32U);
    EXPECT_THAT(leftovers(), IsEmpty());
}

TEST_F(StorePromise, P9AKilledProcessLeavesWhatTheNextOneCollects) {
    store().save(old_.state(), {.step = 10});
    std::vector<test::Disks> moments;
    disk().set_watch([&](const simulation::DiskOperation&) {
        moments.push_back(test::CrashRig::killed(rig_.disks()));
    });
    store().save(new_.state(), {.step = 20});
    for (const test::Disks& moment : moments) {
        rig_.use(moment);
        ASSERT_TRUE(store().latest());
        store().save(new_.state(), {.step = 20});
        expect_latest(store().latest()->generation, new_);
        EXPECT_THAT(leftovers(), IsEmpty());
    }
    EXPECT_GT(moments.size(), 20U);
}

// ---- what goes wrong ----

class StoreTrouble : public StorePromise {};

TEST_F(StoreTrouble, SpaceIsCheckedBeforeTheFirstByte) {
    simulation::DiskShape shape;
    shape.capacity_bytes = 400'000;
    rig_.use(test::Disks{std::make_shared<simulation::FakeDisk>(DeviceId{240, 0}, shape,
                                                                simulation::DiskModel{}, 1)});
    StoreOptions options = kSmall;
    options.keep = 1;
    Tensors large({30'000, 20'000}, 1);  // 200,000 bytes: one fits, and two do not with the rest
    store(options).save(large.state());
    large.change(0, 1);
    large.change(1, 1);
    bool wrote = false;
    disk().set_faults([&](const simulation::DiskAccess& access) {
        wrote = wrote || (access.op == engine::Op::kWrite && access.bytes > 4096);
        return simulation::Fault{};
    });
    const Error full = error_of([&] { store(options).save(large.state()); });
    EXPECT_EQ(full.system_errno(), ENOSPC);
    EXPECT_THAT(full.what(), AllOf(HasSubstr("/store"), HasSubstr("bytes are missing"),
                                   HasSubstr("keep fewer")));
    EXPECT_FALSE(wrote);
    EXPECT_THAT(leftovers(), IsEmpty());
    EXPECT_EQ(store().latest()->generation, 1U);
}

TEST_F(StoreTrouble, StatesThatCannotBeSaved) {
    const std::vector<std::byte> data(16);
    const auto refused = [&](std::vector<StateTensor> tensors) {
        State state;
        state.tensors = std::move(tensors);
        const Error error = error_of([&] { store().save(state); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
    };
    EXPECT_THAT(refused({{"a", "F31", {4}, data}}), AllOf(HasSubstr("'a'"), HasSubstr("'F31'")));
    EXPECT_THAT(refused({{"a", "F32", {5}, data}}),
                AllOf(HasSubstr("'a'"), HasSubstr("20 bytes"), HasSubstr("16 were given")));
    EXPECT_THAT(refused({{"a", "F32", {4}, data}, {"a", "F32", {4}, data}}),
                HasSubstr("comes twice"));
    EXPECT_THAT(refused({{"\xff", "F32", {4}, data}}), HasSubstr("\\xff"));
    EXPECT_THAT(refused({{"a", "F32", {4}, data, {8}, {5}}}), HasSubstr("reaches past"));
    EXPECT_THAT(refused({{"a", "F32", {4}, data, {8}, {0, 0}}}), HasSubstr("dimensions"));
    EXPECT_THAT(refused({{"a", "F32", {4}, data, {8}, {0}}, {"a", "F32", {4}, data, {9}, {4}}}),
                HasSubstr("disagree"));
    EXPECT_THAT(leftovers(), IsEmpty());
    EXPECT_FALSE(store().latest());
}

TEST_F(StoreTrouble, WhoWatchesMayStopIt) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    CheckpointStore store(engine, FileSystem::local(), {folder.path()}, {});
    Tensors large(std::vector<std::uint64_t>(16, 1 << 20), 1);  // 64 MiB
    std::uint64_t calls = 0;
    std::uint64_t total = 0;
    store.save(large.state(), {.progress = [&](std::uint64_t done, std::uint64_t all) {
                   EXPECT_LE(done, all);
                   total = all;
                   ++calls;
                   return true;
               }});
    EXPECT_GE(calls, 1U);
    EXPECT_GT(total, large.bytes());
    large.change(0, 1);
    const Error stopped = error_of([&] {
        store.save(large.state(), {.progress = [](std::uint64_t, std::uint64_t) { return false; }});
    });
    EXPECT_EQ(stopped.reason(), ErrorCode::kCancelled);
    EXPECT_THAT(scan_folder(FileSystem::local(), folder.path()).leftovers, IsEmpty());
    EXPECT_EQ(store.list().size(), 1U);
    EXPECT_EQ(store.save(large.state()).generation, 2U);
}

TEST_F(StoreTrouble, FoldersOfOthersAreLeftAlone) {
    rig_.files().make_folder("/store");
    rig_.files().make_folder("/store/runs");
    rig_.files().make_folder("/store/1-step-1");  // not as a store spells it
    CheckpointStore store = this->store();
    store.save(old_.state(), {.step = 3});
    EXPECT_EQ(store.list().size(), 1U);
    EXPECT_EQ(store.list().front().step, 3U);
    EXPECT_TRUE(is_there(rig_.files(), "/store/runs"));
    EXPECT_TRUE(is_there(rig_.files(), "/store/1-step-1"));
}

// A number after the last one would be 0, and the older checkpoint the newest forever.
TEST_F(StoreTrouble, WhereGenerationsEndNothingIsSaved) {
    for (const std::string name :
         {"18446744073709551615-step-1", ".unfinished-18446744073709551615-0123456789abcdef",
          ".removed-18446744073709551615-step-1"}) {
        rig_.use(test::Disks{std::make_shared<simulation::FakeDisk>(
            DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1)});
        store().save(old_.state(), {.step = 3});
        rig_.files().make_folder("/store/" + name);
        const Error error = error_of([&] { store().save(new_.state(), {.step = 4}); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.what(), AllOf(HasSubstr(name), HasSubstr("/store")));
        expect_latest(1, old_);
        // The last number that there is can be given.
        rig_.files().remove("/store/" + name);
        rig_.files().make_folder("/store/18446744073709551614-step-1");
        EXPECT_EQ(store().save(new_.state(), {.step = 4}).generation, UINT64_MAX);
        expect_latest(UINT64_MAX, new_);
        EXPECT_THROW(store().save(new_.state(), {.step = 5}), Error);
    }
}

TEST_F(StoreTrouble, ARenamedCheckpointIsTold) {
    CheckpointStore store = this->store();
    const CheckpointInfo info = store.save(old_.state(), {.step = 3});
    rig_.files().rename(info.path, "/store/00000009-step-3");
    std::vector<CheckpointInfo> skipped;
    EXPECT_FALSE(store.latest(&skipped));
    EXPECT_THAT(skipped.front().problem, HasSubstr("renamed"));
}

TEST(StoreOnDisk, ALargerStateStraightFromItsMemory) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const FileSystem files = FileSystem::local();
    CheckpointStore store(engine, files, {folder / "made"}, {.keep = 2, .shard_bytes = 20 << 20});
    Tensors tensors({5 << 20, 1 << 20, 17, 12345, 0, 3 << 20, 1}, 1);  // 36 MiB
    const CheckpointInfo info = store.save(tensors.state(), {.step = 7});
    EXPECT_EQ(info.path, files.resolve(folder / "made") + "/00000001-step-7");
    EXPECT_EQ(info.tensor_bytes, tensors.bytes());
    EXPECT_EQ(info.written_bytes, tensors.bytes());
    EXPECT_EQ(info.tensors, 7U);
    EXPECT_GE(info.shards, 2U);
    expect_holds(*engine, files, info.path, tensors);
    const Checkpoint checkpoint = store.open(1);
    EXPECT_EQ(checkpoint.info().step, 7U);
    EXPECT_EQ(checkpoint.structure(), kNoValues);
    // The shards suit readers of safetensors: data at 4 KiB.
    const Manifest manifest = read_manifest(*engine, files, info.path);
    EXPECT_EQ(manifest.shards.front().header_bytes % 4096, 0U);
    EXPECT_EQ(engine->stats().running, 0U);
}

TEST(StoreOnDisk, AForkedChildDoesNotWrite) {
    const support::TempFolder folder;
    CheckpointStore store(std::make_shared<Engine>(), FileSystem::local(), {folder.path()}, {});
    const Tensors tensors({1000}, 1);
    store.save(tensors.state());
    const pid_t child = ::fork();
    if (child == 0) {
        try {
            store.save(tensors.state());
            ::_exit(1);
        } catch (const Error& error) {
            ::_exit(error.reason() == ErrorCode::kInvalidArgument ? 0 : 2);
        }
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(store.save(tensors.state()).generation, 2U);
}

// A lock on a file that is gone locks out nobody.
TEST(StoreOnDisk, AFolderThatIsMadeAnewHasOneWriter) {
    const support::TempFolder folder;
    const std::string path = folder / "store";
    const auto engine = std::make_shared<Engine>();
    const StoreOptions options{.lock_wait_ms = 0};
    const Tensors tensors({1000}, 1);
    const auto make_anew = [&] {
        std::filesystem::remove_all(path);
        std::filesystem::create_directory(path);
    };
    const auto refused = [&](CheckpointStore& store) {
        return test::error_of([&] { store.save(tensors.state()); }).system_errno();
    };
    CheckpointStore one(engine, FileSystem::local(), {path}, options);
    std::optional<CheckpointStore> two(std::in_place, engine, FileSystem::local(),
                                       std::vector<std::string>{path}, options);
    one.save(tensors.state());
    EXPECT_EQ(refused(*two), EWOULDBLOCK);
    make_anew();
    one.save(tensors.state());
    EXPECT_EQ(refused(*two), EWOULDBLOCK);
    make_anew();
    two->save(tensors.state());
    EXPECT_EQ(refused(one), EWOULDBLOCK);
    EXPECT_EQ(test::error_of([&] { one.collect(); }).system_errno(), EWOULDBLOCK);
    two->save(tensors.state());
    two.reset();
    EXPECT_EQ(one.save(tensors.state()).generation, 3U);
    // Nor is one that is gone made again: its device may be.
    std::filesystem::remove_all(path);
    EXPECT_EQ(refused(one), ENOENT);
    EXPECT_EQ(refused(one), ENOENT);
    std::filesystem::create_directory(path);
    EXPECT_EQ(one.save(tensors.state()).generation, 1U);
}

TEST(StoreOnDisk, MemoryIsWhereDirectIoIsNot) {
    const support::TempFolder folder("/dev/shm");
    const auto engine = std::make_shared<Engine>();
    CheckpointStore store(engine, FileSystem::local(), {folder.path()}, {});
    Tensors tensors({1 << 20, 1000}, 1);
    const CheckpointInfo info = store.save(tensors.state());
    EXPECT_THAT(info.note, HasSubstr("page cache"));
    expect_holds(*engine, FileSystem::local(), info.path, tensors);
}

TEST(StoreOnDisk, ManySmallTensorsCostNoCallEach) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    CheckpointStore store(engine, FileSystem::local(), {folder.path()}, {});
    std::vector<std::byte> memory(16384 * 512, std::byte{7});
    State state;
    for (std::size_t i = 0; i < 16384; ++i) {
        state.tensors.push_back({.name = "layer." + std::to_string(i),
                                 .dtype = "U8",
                                 .shape = {512},
                                 .data = std::span(memory).subspan(i * 512, 512)});
    }
    const std::uint64_t before = engine->stats().requests;
    const CheckpointInfo info = store.save(state);
    EXPECT_EQ(info.shards, 1U);
    EXPECT_LT(engine->stats().requests - before, 200U);
    EXPECT_EQ(store.save(state).linked_shards, 1U);
}

// Others have the one transfer of the engine again and again.
TEST(StoreOnDisk, AnEngineWithALimitOnTransfersIsWaitedFor) {
    const support::TempFolder folder;
    EngineOptions options;
    options.transfers_max = 1;
    options.inline_bytes_max = 0;
    const auto engine = std::make_shared<Engine>(options);
    std::jthread other([&](const std::stop_token& stop) {
        const std::vector<std::byte> bytes(4 << 20);
        while (!stop.stop_requested()) {
            try {
                engine->write(folder / "other", bytes);
            } catch (const Error& error) {
                EXPECT_EQ(error.reason(), ErrorCode::kWouldBlock) << error.what();
                std::this_thread::yield();
            }
        }
    });
    const FileSystem files = FileSystem::local();
    const Tensors tensors({5 << 20, 1000, 3 << 20}, 1);
    CheckpointStore store(engine, files, {folder / "store"}, {.shard_bytes = 8 << 20});
    const std::string path = store.save(tensors.state()).path;
    Checkpoint checkpoint(engine, files, path);
    EXPECT_THAT(checkpoint.verify(), IsEmpty());
    other.request_stop();
    other.join();
    expect_holds(*engine, files, path, tensors);
}

}  // namespace
}  // namespace penstock::store
