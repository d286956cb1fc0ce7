// SPDX-License-Identifier: Apache-2.0
// Shards over several folders: placed by speed and room, reachable from the first, gone with their
// checkpoint; a folder that is lost.
#include "store/keep/store_folder.hpp"
#include "store/store_support.hpp"
#include "store/write/placement.hpp"
#include "support.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

namespace penstock::store {
namespace {

using test::error_of;
using test::expect_holds;
using test::Tensors;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- where to (pure) ----

constexpr std::uint64_t kRoom = std::uint64_t{1} << 40;

std::vector<std::uint64_t> bytes_in(std::span<const std::uint64_t> files,
                                    std::span<const std::uint32_t> places, std::size_t folders) {
    std::vector<std::uint64_t> bytes(folders, 0);
    for (std::size_t i = 0; i < files.size(); ++i) {
        bytes[places[i]] += files[i];
    }
    return bytes;
}

TEST(Placement, EachFolderAtItsOwnSpeed) {
    const std::vector<std::uint64_t> files(40, 100);
    const std::vector<FolderRoom> folders{{"/a", 3e9, 1, kRoom}, {"/b", 1e9, 2, kRoom}};
    EXPECT_THAT(bytes_in(files, place_files(files, folders, 0), 2), ElementsAre(3000, 1000));
    // One that was never measured is of average speed.
    const std::vector<FolderRoom> unknown{{"/a", 0, 1, kRoom}, {"/b", 0, 2, kRoom}};
    EXPECT_THAT(bytes_in(files, place_files(files, unknown, 0), 2), ElementsAre(2000, 2000));
}

TEST(Placement, NoFolderGetsMoreThanItHasRoomFor) {
    const std::vector<std::uint64_t> files(10, 100);
    const std::vector<FolderRoom> folders{{"/a", 9e9, 1, 350}, {"/b", 1e9, 2, kRoom}};
    EXPECT_THAT(bytes_in(files, place_files(files, folders, 20), 2), ElementsAre(300, 700));
    // Two folders of one device share what it has.
    const std::vector<FolderRoom> shared{{"/a", 0, 1, 999}, {"/b", 0, 1, 999}};
    const Error error = error_of([&] { static_cast<void>(place_files(files, shared, 0)); });
    EXPECT_EQ(error.system_errno(), ENOSPC);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("1000 bytes"), HasSubstr("999 are free"),
                                    HasSubstr("1 bytes are missing"), HasSubstr("/a")));
}

// ---- in the store ----

class Folders : public ::testing::Test {
protected:
    Folders() {
        for (const char* disk : {"/0", "/1", "/2"}) {
            rig_.files().make_folder(std::string(disk) + "/store");
            rig_.files().sync_folder(disk);
        }
    }
    [[nodiscard]] CheckpointStore store() {
        return {rig_.engine(),
                rig_.files(),
                {"/0/store", "/1/store", "/2/store"},
                {.keep = 2, .shard_bytes = 4096, .read_back = false, .lock_wait_ms = 0}};
    }
    [[nodiscard]] std::size_t parts(int disk) {
        const auto names = rig_.files().list("/" + std::to_string(disk) + "/store");
        return static_cast<std::size_t>(std::count_if(
            names.begin(), names.end(), [](const auto& name) { return !name.starts_with('.'); }));
    }

    test::CrashRig rig_{3};
    Tensors tensors_{std::vector<std::uint64_t>(12, 1024), 1};  // each a shard
};

TEST_F(Folders, TheFirstIsWholeForWhoKnowsNothingOfTheOthers) {
    CheckpointStore store = this->store();
    const CheckpointInfo info = store.save(tensors_.state());
    EXPECT_EQ(info.shards, 12U);
    const Manifest manifest = read_manifest(*rig_.engine(), rig_.files(), info.path);
    ASSERT_EQ(manifest.folders.size(), 3U);
    EXPECT_THAT(manifest.folders[1], HasSubstr("/1/store/00000001-step-0."));
    std::vector<std::size_t> shards(3, 0);
    for (const Shard& shard : manifest.shards) {
        ++shards[shard.folder];
        EXPECT_EQ(rig_.files().status(join(info.path, shard.file)).kind,
                  shard.folder == 0 ? FileKind::kFile : FileKind::kSymbolicLink);
    }
    EXPECT_THAT(shards, ElementsAre(4, 4, 4));
    expect_holds(*rig_.engine(), rig_.files(), info.path, tensors_);  // through the links
    EXPECT_EQ(store.folders().size(), 3U);
}

TEST_F(Folders, PartsAreLinkedAndGoWithTheirCheckpoint) {
    CheckpointStore store = this->store();
    for (std::uint64_t save = 1; save <= 5; ++save) {
        tensors_.change(save, save);
        const CheckpointInfo info = store.save(tensors_.state(), {.step = save});
        EXPECT_EQ(info.linked_shards, save == 1 ? 0U : 11U);
        EXPECT_EQ(info.note, "");
        expect_holds(*rig_.engine(), rig_.files(), info.path, tensors_);
    }
    EXPECT_EQ(store.list().size(), 2U);
    EXPECT_LE(parts(1), 2U);
    EXPECT_LE(parts(2), 2U);
    EXPECT_GE(parts(1) + parts(2), 2U);
    store.remove(4);
    EXPECT_LE(parts(1), 1U);
    EXPECT_LE(parts(2), 1U);
    expect_holds(*rig_.engine(), rig_.files(), store.latest()->path, tensors_);
}

TEST_F(Folders, ALostFolderIsTold) {
    const Tensors old = tensors_;
    store().save(old.state());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        tensors_.change(i, 9);
    }
    const CheckpointInfo info = store().save(tensors_.state());
    const std::string lost = read_manifest(*rig_.engine(), rig_.files(), info.path).folders[1];
    rig_.files().rename(lost, lost + ".lost");
    std::vector<CheckpointInfo> skipped;
    const auto latest = store().latest(&skipped);
    ASSERT_TRUE(latest);
    EXPECT_EQ(latest->generation, 1U);
    expect_holds(*rig_.engine(), rig_.files(), latest->path, old);
    ASSERT_EQ(skipped.size(), 1U);
    EXPECT_THAT(skipped.front().problem, AllOf(HasSubstr(lost), HasSubstr("is missing")));
    // It may come back: nothing of it is thrown away meanwhile.
    EXPECT_EQ(store().save(old.state()).generation, 3U);
    rig_.files().rename(lost + ".lost", lost);
    const auto all = store().list();
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[1].problem, "");
}

TEST_F(Folders, WhatAKilledProcessLeftIsCollectedInAllOfThem) {
    {
        CheckpointStore store = this->store();
        store.save(tensors_.state(), {.step = 1});
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            tensors_.change(i, 9);
        }
        rig_.disks()[0]->cut_off_at(rig_.disks()[0]->operations() + 24);
        EXPECT_THROW(store.save(tensors_.state(), {.step = 2}), Error);
    }
    rig_.use(test::CrashRig::killed(rig_.disks()));
    EXPECT_FALSE(scan_folder(rig_.files(), "/0/store").leftovers.empty());
    // Another store that has its shards in the same folder loses nothing.
    rig_.files().make_folder("/1/store/00000007-step-7.00000000000000000badc0de");
    CheckpointStore store = this->store();
    EXPECT_GT(store.collect(), 0U);
    EXPECT_THAT(scan_folder(rig_.files(), "/0/store").leftovers, IsEmpty());
    EXPECT_EQ(parts(1), 2U);
    EXPECT_EQ(parts(2), 1U);
    EXPECT_EQ(store.latest()->step, 1U);
    EXPECT_EQ(store.collect(), 0U);
}

TEST_F(Folders, DurableInAllOfThem) {
    store().save(tensors_.state());
    const test::Disks disks = rig_.disks();
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        rig_.use(test::CrashRig::crashed(disks, seed));
        const auto latest = store().latest();
        ASSERT_TRUE(latest);
        expect_holds(*rig_.engine(), rig_.files(), latest->path, tensors_);
    }
}

enum class Later : std::uint8_t { kWorks, kRemovesNothing, kFails };  // after the error

class FoldersInTrouble : public Folders, public ::testing::WithParamInterface<Later> {
protected:
    [[nodiscard]] static bool fails(const simulation::DiskOperation& operation,
                                    std::uint64_t target) {
        const bool removes = operation.call == simulation::DiskCall::kRemove;
        return operation.number == target ||
               (operation.number > target &&
                (GetParam() == Later::kFails || (GetParam() == Later::kRemovesNothing && removes)));
    }
};

TEST_P(FoldersInTrouble, AnErrorOfAnyOperationOnAnyDisk) {
    const Tensors old = tensors_;
    store().save(old.state(), {.step = 1});
    const test::Disks before = test::CrashRig::killed(rig_.disks());
    for (std::size_t i = 0; i < 6; ++i) {
        tensors_.change(i, 9);
    }
    for (std::size_t disk = GetParam() == Later::kWorks ? 0 : 1; disk < 3; ++disk) {
        for (std::uint64_t at = 0;; ++at) {
            rig_.use(test::CrashRig::killed(before));
            const std::uint64_t target = rig_.disks()[disk]->operations() + at;
            bool met = false;
            rig_.disks()[disk]->set_operation_faults(
                [&](const simulation::DiskOperation& operation) {
                    met = met || operation.number == target;
                    return fails(operation, target) ? EIO : 0;
                });
            bool saved = true;
            try {
                store().save(tensors_.state(), {.step = 2});
            } catch (const Error&) {
                saved = false;
            }
            rig_.disks()[disk]->set_operation_faults({});
            const auto latest = store().latest();
            ASSERT_TRUE(latest);
            EXPECT_EQ(latest->step, saved ? 2U : 1U);
            expect_holds(*rig_.engine(), rig_.files(), latest->path, saved ? tensors_ : old);
            // One step of the cleaning up may itself have been what failed.
            store().collect();
            EXPECT_EQ(parts(1), saved ? 2U : 1U);
            EXPECT_EQ(parts(2), saved ? 2U : 1U);
            ASSERT_FALSE(HasFailure()) << "operation " << at << " on disk " << disk;
            if (!met) {
                break;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Later, FoldersInTrouble,
                         ::testing::Values(Later::kWorks, Later::kRemovesNothing, Later::kFails));

TEST(FoldersOnDisk, LinksLeadThere) {
    const support::TempFolder one;
    const support::TempFolder two;
    const auto engine = std::make_shared<Engine>();
    const FileSystem files = FileSystem::local();
    Tensors tensors(std::vector<std::uint64_t>(8, 1 << 18), 1);
    CheckpointStore store(engine, files, {one / "new", two.path()},
                          {.keep = 1, .shard_bytes = 1 << 20, .read_back = false});
    const CheckpointInfo info = store.save(tensors.state());
    expect_holds(*engine, files, info.path, tensors);
    Checkpoint checkpoint = store.open(info.generation);
    EXPECT_THAT(checkpoint.verify(), IsEmpty());
    tensors.change(0, 1);
    expect_holds(*engine, files, store.save(tensors.state()).path, tensors);
    EXPECT_EQ(files.list(two.path()).size(), 2U);  // the record, and the newest's
    const CheckpointInfo deep =
        CheckpointStore(engine, files, {one / "a/b/c", two / "d/e"}).save(tensors.state());
    EXPECT_EQ(deep.path, files.resolve(one.path()) + "/a/b/c/00000001-step-0");
    expect_holds(*engine, files, deep.path, tensors);
    EXPECT_THAT(error_of([&] {
                    CheckpointStore(engine, files, {one.path(), one / "."});
                }).what(),
                HasSubstr("named twice"));
}

}  // namespace
}  // namespace penstock::store
