// SPDX-License-Identifier: Apache-2.0
// A store deletes nothing but its own. Symbolic links to a decoy are planted at each name that a
// store, or a save of one file, removes or writes to by name; folders and files of others have such
// names; a folder becomes a link between the look at it and its removal. The decoy stays whole,
// what is not the store's is reported and left, and what killed processes left still goes.
#include "state/writing/replace.hpp"
#include "store/identity/ownership.hpp"
#include "store/identity/parts_name.hpp"
#include "store/keep/store_folder.hpp"
#include "store/store_support.hpp"
#include "stream/checksum.hpp"
#include "support.hpp"
#include "support/crash_harness.hpp"

#include <penstock/checkpoint.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

using test::error_of;
using test::expect_holds;
using test::read_whole;
using test::Tensors;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const StoreOptions kSmall{.keep = 2, .shard_bytes = 4096, .lock_wait_ms = 0};
constexpr std::string_view kRandom = "0123456789abcdef";

void write_file(const test::CrashRig& rig, const std::string& path, const std::string& text) {
    File file = rig.files().open(path, {.access = Access::kWrite, .create = true});
    rig.engine()->write(file, std::as_bytes(std::span(text)), 0);
}

/// Names, kinds, bytes, modes and times of a tree.
std::map<std::string, std::string> snapshot(const test::CrashRig& rig, const std::string& path) {
    std::map<std::string, std::string> out;
    for (const std::string& name : rig.files().list(path)) {
        const std::string inside = join(path, name);
        const FileStatus status = rig.files().status(inside);
        std::string& row = out[inside];
        row = fmt::format("{} {:o} {}", static_cast<int>(status.kind), status.mode,
                          status.modified_ns);
        if (status.kind == FileKind::kFolder) {
            out.merge(snapshot(rig, inside));
        } else if (status.kind == FileKind::kFile) {
            row += fmt::format(
                " {:x}", stream::content_hash(read_whole(*rig.engine(), rig.files(), inside)));
        }
    }
    return out;
}

/// A folder that nobody gave to a store, with all the names that a store would take.
void make_decoy(const test::CrashRig& rig, const std::string& path) {
    rig.files().make_folder(path);
    for (const char* name : {"diary", "shard-00001.safetensors", "manifest.json", "pinned"}) {
        write_file(rig, join(path, name), std::string("the content of ") + name);
    }
    rig.files().make_folder(join(path, "inner"));
    write_file(rig, join(path, "inner/diary"), "more");
}

class Links : public ::testing::Test {
protected:
    Links() {
        make_decoy(rig_, "/decoy");
        rig_.files().make_folder("/store");
        decoy_ = snapshot(rig_, "/decoy");
    }
    [[nodiscard]] CheckpointStore store(const StoreOptions& options = kSmall) {
        return {rig_.engine(), rig_.files(), {"/store"}, options};
    }
    void expect_whole() { EXPECT_EQ(snapshot(rig_, "/decoy"), decoy_); }
    [[nodiscard]] bool is_there(const std::string& path) {
        return store::is_there(rig_.files(), path);
    }
    [[nodiscard]] FileKind kind_of(const std::string& path) {
        return rig_.files().status(path).kind;
    }
    [[nodiscard]] simulation::FakeDisk& disk() { return *rig_.disks().front(); }

    test::CrashRig rig_;
    Tensors tensors_{{600, 3, 900, 0, 1500}, 1};
    std::map<std::string, std::string> decoy_;
};

// ---- names in the store's folder ----

TEST_F(Links, RetentionLeavesALinkNamedLikeACheckpoint) {
    CheckpointStore store = this->store();
    rig_.files().remove("/decoy/pinned");  // which would keep it
    decoy_ = snapshot(rig_, "/decoy");
    rig_.files().symbolic_link("/decoy", "/store/00000000-step-0");
    store.save(tensors_.state());
    store.save(tensors_.state());
    store.save(tensors_.state());
    const CheckpointInfo last = store.save(tensors_.state());
    expect_whole();
    EXPECT_EQ(kind_of("/store/00000000-step-0"), FileKind::kSymbolicLink);
    EXPECT_EQ(store.list().size(), 3U);  // two are kept, and the link
    EXPECT_FALSE(is_there("/store/00000002-step-0"));
    expect_holds(*rig_.engine(), rig_.files(), last.path, tensors_);
}

TEST_F(Links, WhatIsLeftIsReportedOnce) {
    CheckpointStore store = this->store();
    rig_.files().symbolic_link("/decoy", "/store/00000000-step-0");
    rig_.files().symbolic_link("/decoy", "/store/.removed-00000000-step-7");
    std::vector<std::string> notes;
    for (int i = 0; i < 4; ++i) {
        notes.push_back(store.save(tensors_.state()).note);
    }
    EXPECT_THAT(notes[0], AllOf(HasSubstr("/store/.removed-00000000-step-7"),
                                HasSubstr("symbolic link"), HasSubstr("left")));
    EXPECT_THAT(notes, Contains(HasSubstr("/store/00000000-step-0")));
    EXPECT_EQ(notes[3], "");
    expect_whole();
}

// A checkpoint that was moved to another disk and linked in is readable, and not one of those that
// retention keeps: it may be gone tomorrow.
TEST_F(Links, ALinkedCheckpointIsReadAndNeitherCountedNorRemoved) {
    {
        CheckpointStore store = this->store();
        store.save(tensors_.state(), {.step = 1});
    }
    rig_.files().make_folder("/archive");
    rig_.files().rename("/store/00000001-step-1", "/archive/00000009-step-9");
    rig_.files().symbolic_link("/archive/00000009-step-9", "/store/00000009-step-9");
    CheckpointStore store = this->store({.keep = 1, .shard_bytes = 4096, .lock_wait_ms = 0});
    const auto archive = snapshot(rig_, "/archive");
    EXPECT_EQ(store.save(tensors_.state(), {.step = 10}).generation, 10U);
    EXPECT_EQ(store.save(tensors_.state(), {.step = 11}).generation, 11U);
    const auto list = store.list();
    ASSERT_EQ(list.size(), 2U);
    EXPECT_THAT(list[0].note, HasSubstr("symbolic link"));
    EXPECT_EQ(list[1].generation, 11U);
    EXPECT_EQ(list[1].note, "");
    EXPECT_THAT(error_of([&] { store.remove(9); }).what(), HasSubstr("symbolic link"));
    EXPECT_THAT(error_of([&] { store.pin(9); }).what(), HasSubstr("symbolic link"));
    EXPECT_EQ(snapshot(rig_, "/archive").size(), archive.size());
    EXPECT_FALSE(is_there("/archive/00000009-step-9/pinned"));
}

TEST_F(Links, CollectingLeavesLinksNamedLikeLeftovers) {
    CheckpointStore store = this->store();
    store.save(tensors_.state());
    for (const std::string& name : {unfinished_name(3, kRandom), removed_name("00000001-step-1"),
                                    removed_name("00000001-step-1") + "-2"}) {
        rig_.files().symbolic_link("/decoy", join("/store", name));
    }
    EXPECT_EQ(store.collect(), 0U);
    store.save(tensors_.state());
    expect_whole();
    EXPECT_TRUE(is_there(join("/store", unfinished_name(3, kRandom))));
}

TEST_F(Links, LinksInsideACheckpointAreUnlinkedAndNothingElse) {
    CheckpointStore store = this->store({.keep = 1, .shard_bytes = 4096, .lock_wait_ms = 0});
    const CheckpointInfo first = store.save(tensors_.state());
    rig_.files().symbolic_link("/decoy", join(first.path, "folder"));
    rig_.files().symbolic_link("/decoy/diary", join(first.path, "file"));
    rig_.files().symbolic_link("/nowhere", join(first.path, "dangling"));
    rig_.files().make_folder(join(first.path, "user"));
    rig_.files().symbolic_link("/decoy/inner", join(first.path, "user/folder"));
    store.save(tensors_.state());
    EXPECT_FALSE(is_there(first.path));
    EXPECT_THAT(rig_.files().list("/store"), Not(Contains(HasSubstr(".removed"))));
    expect_whole();
}

TEST_F(Links, FilesAndFoldersOfOthersWithSuchNamesStay) {
    CheckpointStore store = this->store({.keep = 1, .shard_bytes = 4096, .lock_wait_ms = 0});
    write_file(rig_, "/store/00000000-step-1", "a file");
    write_file(rig_, join("/store", unfinished_name(2, kRandom)), "a file");
    make_decoy(rig_, "/store/00000000-step-2");
    rig_.files().remove("/store/00000000-step-2/manifest.json");
    make_decoy(rig_,
               join("/store", unfinished_name(1, kRandom)));  // "diary" is no name of a save's
    rig_.files().make_folder("/store/.unfinished-mine");
    write_file(rig_, "/store/.unfinished-mine/shard-00001.safetensors", "not a name of a save's");
    const auto before = snapshot(rig_, "/store");
    const std::string note = store.save(tensors_.state()).note + store.save(tensors_.state()).note +
                             store.save(tensors_.state()).note;
    auto after = snapshot(rig_, "/store");
    for (const auto& [path, row] : before) {
        EXPECT_EQ(after[path], row) << path;
    }
    EXPECT_THAT(note, AllOf(HasSubstr("00000000-step-1"), HasSubstr("00000000-step-2"),
                            HasSubstr("holds no manifest.json"), HasSubstr("'diary'")));
    rig_.files().remove("/store/00000000-step-1");  // two of one generation are refused as such
    EXPECT_THAT(error_of([&] { store.remove(0); }).what(), HasSubstr("delete it yourself"));
}

// The lock file and the mark of a pin are written to by name.
TEST_F(Links, TheLockFileIsNoLink) {
    rig_.files().symbolic_link("/decoy/diary", "/store/.lock");
    const Error error = error_of([&] { store().save(tensors_.state()); });
    EXPECT_THAT(error.what(), HasSubstr("/store/.lock"));
    expect_whole();
    rig_.files().remove("/store/.lock");
    rig_.files().symbolic_link("/decoy/made", "/store/.lock");
    EXPECT_THROW(store().save(tensors_.state()), Error);
    expect_whole();
}

TEST_F(Links, TheMarkOfAPinIsNoLink) {
    CheckpointStore store = this->store();
    const CheckpointInfo info = store.save(tensors_.state());
    rig_.files().symbolic_link("/decoy/made", join(info.path, kPinnedName));
    EXPECT_THROW(store.pin(info.generation), Error);
    expect_whole();
    store.pin(info.generation, false);
    EXPECT_FALSE(is_there(join(info.path, kPinnedName)));
    expect_whole();
}

// ---- races: a folder becomes a link after it was looked at ----

// Before each operation of a removal in turn, another process puts a link in the place of a folder.
TEST_F(Links, AFolderThatBecomesALinkOnTheWay) {
    {
        CheckpointStore store = this->store({.keep = 0, .shard_bytes = 4096, .lock_wait_ms = 0});
        const CheckpointInfo first = store.save(tensors_.state());
        rig_.files().make_folder(join(first.path, "user"));
        write_file(rig_, join(first.path, "user/diary"), "the user's");
        store.save(tensors_.state());
        rig_.files().make_folder("/elsewhere");
    }
    const test::Disks before = test::CrashRig::killed(rig_.disks());
    const std::vector<std::string> swapped{"00000001-step-0", ".removed-00000001-step-0",
                                           ".removed-00000001-step-0/user"};
    for (const std::string& name : swapped) {
        std::uint64_t swaps = 0;
        bool met = true;
        for (std::uint64_t at = 0; met; ++at) {
            met = false;
            rig_.use(test::CrashRig::killed(before));
            CheckpointStore store =
                this->store({.keep = 1, .shard_bytes = 4096, .lock_wait_ms = 0});
            const std::uint64_t target = disk().operations() + at;
            bool inside = false;
            disk().set_watch([&](const simulation::DiskOperation& operation) {
                if (operation.number != target || inside) {
                    return;
                }
                inside = met = true;
                const std::string path = join("/store", name);
                if (is_there(path) && kind_of(path) == FileKind::kFolder) {
                    rig_.files().rename(path, "/elsewhere/moved");
                    rig_.files().symbolic_link("/decoy", path);
                    ++swaps;
                }
                inside = false;
            });
            try {
                store.remove(1);
            } catch (const Error&) {  // whatever it says, it left the decoy alone
            }
            disk().set_watch({});
            expect_whole();
            ASSERT_FALSE(HasFailure()) << name << " at operation " << at;
            ASSERT_LT(at, 200U);
        }
        EXPECT_GT(swaps, 2U) << name;
    }
}

// ---- what killed processes left still goes ----

TEST_F(Links, AnySubsetOfWhatASaveMakesIsCollected) {
    const std::vector<std::string> names{"shard-00001.safetensors", "shard-00002.safetensors",
                                         "model.safetensors.index.json", "pinned", "manifest.json"};
    CheckpointStore store = this->store();
    store.save(tensors_.state());
    for (unsigned subset = 0; subset < 1U << names.size(); ++subset) {
        for (const std::string& hidden :
             {unfinished_name(2, kRandom), removed_name("00000001-step-9")}) {
            const std::string path = join("/store", hidden);
            rig_.files().make_folder(path);
            for (std::size_t i = 0; i < names.size(); ++i) {
                if ((subset >> i & 1U) != 0) {
                    write_file(rig_, join(path, names[i]), "x");
                }
            }
        }
        EXPECT_EQ(store.collect() > 0, subset != 0);
        ASSERT_THAT(scan_folder(rig_.files(), "/store").leftovers, IsEmpty()) << subset;
    }
}

// A checkpoint with files of the user's own in it, on its way out: the manifest goes last, so the
// next collection knows it again wherever the first was killed.
TEST_F(Links, ARemovalKilledAnywhereIsFinishedByTheNext) {
    {
        CheckpointStore store = this->store({.keep = 0, .shard_bytes = 4096, .lock_wait_ms = 0});
        const CheckpointInfo first = store.save(tensors_.state());
        write_file(rig_, join(first.path, "config.json"), "the user's");
        rig_.files().make_folder(join(first.path, "tokenizer"));
        write_file(rig_, join(first.path, "tokenizer/words"), "the user's");
        store.save(tensors_.state());
    }
    const test::Disks before = test::CrashRig::killed(rig_.disks());
    for (std::uint64_t at = 0;; ++at) {
        rig_.use(test::CrashRig::killed(before));
        disk().cut_off_at(disk().operations() + at);
        bool removed = true;
        try {
            store().remove(1);
        } catch (const Error&) {
            removed = false;
        }
        rig_.use(test::CrashRig::killed(rig_.disks()));
        CheckpointStore next = store();
        next.collect();
        ASSERT_THAT(scan_folder(rig_.files(), "/store").leftovers, IsEmpty()) << at;
        if (removed) {
            EXPECT_GT(at, 5U);
            break;
        }
    }
}

// ---- several folders ----

class LinkedParts : public ::testing::Test {
protected:
    LinkedParts() {
        for (const char* disk : {"/0", "/1"}) {
            make_decoy(rig_, std::string(disk) + "/decoy");
            rig_.files().make_folder(std::string(disk) + "/store");
            decoys_.merge(snapshot(rig_, std::string(disk) + "/decoy"));
        }
    }
    [[nodiscard]] CheckpointStore store() {
        return {rig_.engine(),
                rig_.files(),
                {"/0/store", "/1/store"},
                {.keep = 1, .shard_bytes = 4096, .lock_wait_ms = 0}};
    }
    void expect_whole() {
        auto now = snapshot(rig_, "/0/decoy");
        now.merge(snapshot(rig_, "/1/decoy"));
        EXPECT_EQ(now, decoys_);
    }
    CheckpointInfo save(CheckpointStore& store) {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            tensors_.change(i, ++seed_);
        }
        return store.save(tensors_.state());
    }

    test::CrashRig rig_{2};
    Tensors tensors_{std::vector<std::uint64_t>(8, 1024), 1};
    std::uint64_t seed_ = 1;
    std::map<std::string, std::string> decoys_;
};

TEST_F(LinkedParts, ALinkInTheNameOfAPartsFolderIsLeft) {
    CheckpointStore store = this->store();
    save(store);
    const auto own = known_identity(*rig_.engine(), rig_.files(), "/0/store");
    ASSERT_TRUE(own);
    const std::string parts = parts_name("00000000-step-0", own->identity, 5);
    rig_.files().symbolic_link("/1/decoy", join("/1/store", parts));
    save(store);
    expect_whole();
    EXPECT_TRUE(is_there(rig_.files(), join("/1/store", parts)));
}

// Links in a checkpoint say where its shards are; what they say is not enough to remove it.
TEST_F(LinkedParts, WhatLinksLeadToOutsideOfTheStoreIsLeft) {
    CheckpointStore store = this->store();
    const CheckpointInfo first = save(store);
    const std::string name = "00000001-step-0.0123456789abcdef01234567";
    for (const std::string& foreign : {"/1/decoy/" + name, "/1/store/" + name}) {
        rig_.files().make_folder(foreign);
        write_file(rig_, join(foreign, "shard-00091.safetensors"), "another store's");
        rig_.files().symbolic_link(
            join(foreign, "shard-00091.safetensors"),
            join(first.path, foreign.starts_with("/1/decoy") ? "shard-00091.safetensors"
                                                             : "shard-00092.safetensors"));
    }
    decoys_.merge(snapshot(rig_, "/1/decoy"));
    const std::string note = save(store).note;
    expect_whole();
    EXPECT_FALSE(is_there(rig_.files(), first.path));
    EXPECT_TRUE(is_there(rig_.files(), "/1/store/" + name + "/shard-00091.safetensors"));
    EXPECT_THAT(note, HasSubstr("/1/store/" + name));
    // It, the newest's, and the record.
    EXPECT_THAT(rig_.files().list("/1/store"), ::testing::SizeIs(3));
}

// Its manifest names the shards of the checkpoint that it is a copy of.
TEST_F(LinkedParts, ACopyGoesWithoutTheShardsOfItsOriginal) {
    CheckpointStore store(rig_.engine(), rig_.files(), {"/0/store", "/1/store"},
                          {.shard_bytes = 4096, .lock_wait_ms = 0});
    const CheckpointInfo first = save(store);
    const Tensors saved = tensors_;
    const std::string text = read_manifest_text(*rig_.engine(), rig_.files(), first.path);
    for (const char* const copy :
         {"/0/store/00000050-step-0", "/0/store/00000001-step-7",
          "/0/store/.removed-00000051-step-0", "/0/store/.removed-00000001-step-0"}) {
        rig_.files().make_folder(copy);
        write_file(rig_, join(copy, kManifestName), text);
    }
    store.remove(50);
    store.collect();
    EXPECT_FALSE(is_there(rig_.files(), "/0/store/00000050-step-0"));
    EXPECT_THAT(scan_folder(rig_.files(), "/0/store").leftovers, IsEmpty());
    test::expect_holds(*rig_.engine(), rig_.files(), first.path, saved);
    // The original may be elsewhere, and its links lead there still.
    rig_.files().rename(first.path, "/0/elsewhere");
    store.remove(1);
    test::expect_holds(*rig_.engine(), rig_.files(), "/0/elsewhere", saved);
    EXPECT_THAT(save(store).note, HasSubstr("no checkpoint in '/0/store' leads there"));
    test::expect_holds(*rig_.engine(), rig_.files(), "/0/elsewhere", saved);
}

// A removal that finds a pin gives the name back. It may be killed before it does.
TEST_F(LinkedParts, APinnedCheckpointThatARemovalHadRenamedComesBack) {
    CheckpointStore store = this->store();
    const CheckpointInfo first = save(store);
    const Tensors saved = tensors_;
    store.pin(first.generation, true);
    for (const char* const name :
         {"/0/store/.removed-00000001-step-0", "/0/store/.removed-00000001-step-0-2"}) {
        rig_.files().rename(first.path, name);
        save(store);
        test::expect_holds(*rig_.engine(), rig_.files(), first.path, saved);
        EXPECT_TRUE(store.list().front().pinned);
        EXPECT_THAT(scan_folder(rig_.files(), "/0/store").leftovers, IsEmpty());
    }
}

// The disk of the first folder is not mounted: an empty folder is in its place, and what the others
// hold has no checkpoint there. It is not thrown away.
TEST_F(LinkedParts, PartsStayWhereTheFirstFolderIsAnotherOne) {
    CheckpointStore(store()).save(tensors_.state());
    save(*std::make_unique<CheckpointStore>(store()));
    const CheckpointInfo newest = save(*std::make_unique<CheckpointStore>(store()));
    const auto parts = snapshot(rig_, "/1/store");
    rig_.files().rename("/0/store", "/0/unmounted");
    rig_.files().make_folder("/0/store");
    std::string note;
    for (int i = 0; i < 7; ++i) {  // past the generation of the newest
        CheckpointStore empty(rig_.engine(), rig_.files(), {"/0/store", "/1/store"},
                              {.keep = 1, .shard_bytes = 4096, .lock_wait_ms = 0});
        note += i == 0 ? (empty.collect(), "") : save(empty).note;
    }
    auto after = snapshot(rig_, "/1/store");
    for (const auto& [path, row] : parts) {
        EXPECT_EQ(after[path], row) << path;
    }
    EXPECT_THAT(note, AllOf(HasSubstr("'/1/store'"), HasSubstr("mounted")));
    rig_.files().rename("/0/store", "/0/gone");
    rig_.files().rename("/0/unmounted", "/0/store");
    EXPECT_EQ(store().latest()->path, newest.path);
}

// ---- a save of one file ----

TEST_F(Links, TemporaryFilesOfASaveAreNoLinks) {
    rig_.files().make_folder("/folder");
    for (const char* target : {"/decoy/diary", "/decoy", "/decoy/made"}) {
        rig_.files().symbolic_link(target, "/folder/.state.bin.0123456789abcdef.tmp");
        state::Replacement replacement(rig_.files(), "/folder/state.bin");
        replacement.commit();
        expect_whole();
        EXPECT_EQ(kind_of("/folder/.state.bin.0123456789abcdef.tmp"), FileKind::kSymbolicLink);
        rig_.files().remove("/folder/.state.bin.0123456789abcdef.tmp");
    }
    rig_.files().make_folder("/folder/.state.bin.0123456789abcdef.tmp");
    { state::Replacement(rig_.files(), "/folder/state.bin").commit(); }
    EXPECT_TRUE(is_there("/folder/.state.bin.0123456789abcdef.tmp"));
}

// Between the making of the temporary file and its opening, a link is put in its place.
TEST_F(Links, ATemporaryFileThatBecomesALinkIsNotWritten) {
    rig_.files().make_folder("/folder");
    bool swapped = false;
    disk().set_watch([&](const simulation::DiskOperation& operation) {
        if (operation.call == simulation::DiskCall::kOpen &&
            operation.path.starts_with("/folder/.") && !swapped) {
            const std::string path = operation.path;
            swapped = true;
            rig_.files().remove(path);
            rig_.files().symbolic_link("/decoy/diary", path);
        }
    });
    EXPECT_THROW(state::Replacement(rig_.files(), "/folder/state.bin").file().truncate(1), Error);
    disk().set_watch({});
    EXPECT_TRUE(swapped);
    expect_whole();
}

// Documented: what the target's own link leads to is replaced.
TEST_F(Links, ALinkGivenAsTheTargetIsFollowed) {
    rig_.files().make_folder("/folder");
    write_file(rig_, "/folder/real.bin", "old");
    rig_.files().symbolic_link("/folder/real.bin", "/folder/state.bin");
    state::Replacement replacement(rig_.files(), "/folder/state.bin");
    replacement.file().truncate(1);
    replacement.commit();
    EXPECT_EQ(kind_of("/folder/state.bin"), FileKind::kSymbolicLink);
    EXPECT_EQ(rig_.files().status("/folder/real.bin").bytes, 1U);
}

}  // namespace
}  // namespace penstock::store
