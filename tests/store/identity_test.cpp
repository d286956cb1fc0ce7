// SPDX-License-Identifier: Apache-2.0
// A store knows its own: first folders that were moved, copied, restored, cloned, are not mounted,
// or have the same path on two machines, over one shared drive. No shard of another copy goes, what
// is left is reported, and a store goes on to remove what it alone has.
#include "store/identity/identity.hpp"

#include "base/path.hpp"
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

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

using test::error_of;
using test::read_whole;
using test::Tensors;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// ---- the texts (pure) ----

StoreIdentity an_identity() {
    return {.identity = make_identity(),
            .before = {make_identity(), make_identity()},
            .place = {.inode = 77, .device = {8, 3}, .path_hash = 0x1234},
            .records = {{.last = 5, .next = 6}, {.last = 0, .next = UINT64_MAX}}};
}

TEST(Identity, TextsComeBack) {
    const StoreIdentity identity = an_identity();
    EXPECT_TRUE(is_identity(identity.identity));
    EXPECT_NE(identity.identity, identity.before.front());
    const auto read = parse_identity(render(identity));
    ASSERT_TRUE(read);
    EXPECT_EQ(render(*read), render(identity));
    EXPECT_EQ(read->before, identity.before);
    EXPECT_TRUE(read->place.is_same(identity.place));
    EXPECT_TRUE(read->records[1].has(UINT64_MAX));
    EXPECT_FALSE(read->records[1].has(0));
    const FolderRecord record{.identity = identity.identity, .generation = 12, .word = 99};
    const auto read_record = parse_record(render(record));
    ASSERT_TRUE(read_record);
    EXPECT_EQ(render(*read_record), render(record));
}

TEST(Identity, NoTextThatWasChangedIsRead) {
    const std::string identity = render(an_identity());
    const std::string record = render(FolderRecord{.identity = make_identity(), .word = 1});
    EXPECT_FALSE(parse_record(identity));
    EXPECT_FALSE(parse_identity(record));
    for (const std::string& text : {identity, record}) {
        for (std::size_t i = 0; i < text.size(); ++i) {
            std::string changed = text;
            changed[i] = static_cast<char>(changed[i] ^ 1);
            EXPECT_FALSE(parse_identity(changed) || parse_record(changed)) << i;
            EXPECT_FALSE(parse_identity(text.substr(0, i)) || parse_record(text.substr(0, i))) << i;
        }
    }
}

TEST(Identity, APlaceIsTheSameAfterARenameAndABoot) {
    const FilePlace place{.inode = 77, .device = {8, 3}, .path_hash = 1};
    EXPECT_TRUE(place.is_same({.inode = 77, .device = {8, 3}, .path_hash = 2}));   // renamed
    EXPECT_TRUE(place.is_same({.inode = 77, .device = {9, 0}, .path_hash = 1}));   // after a boot
    EXPECT_FALSE(place.is_same({.inode = 78, .device = {8, 3}, .path_hash = 1}));  // copied
    EXPECT_FALSE(place.is_same({.inode = 77, .device = {9, 0}, .path_hash = 2}));  // a snapshot
}

// ---- stores ----

constexpr const char* kDrive = "/1/drive";

class Owners : public ::testing::Test {
protected:
    Owners() {
        rig_.files().make_folder("/0/run");
        rig_.files().make_folder(kDrive);
        for (const auto& disk : rig_.disks()) {
            disk->settle();
        }
    }

    // One process: opens the store, saves, and ends.
    CheckpointInfo save(const std::string& first, std::uint64_t number, std::uint32_t keep = 1,
                        const std::string& drive = kDrive) {
        CheckpointStore store(rig_.engine(), rig_.files(), {first, drive},
                              {.keep = keep, .shard_bytes = 4096, .lock_wait_ms = 0});
        return store.save(numbered(number).state(), {.step = number});
    }
    // Different in every tensor, so that nothing is linked.
    static Tensors numbered(std::uint64_t number) {
        return {std::vector<std::uint64_t>(4, 1024), number};
    }
    // Each checkpoint there is whole, and what was saved as its step. Their steps.
    std::vector<std::uint64_t> steps(const std::string& first) {
        std::vector<std::uint64_t> out;
        CheckpointStore store(rig_.engine(), rig_.files(), {first}, {});
        for (const CheckpointInfo& info : store.list()) {
            EXPECT_EQ(info.problem, "") << info.path;
            if (info.problem.empty()) {
                test::expect_holds(*rig_.engine(), rig_.files(), info.path, numbered(info.step));
            }
            out.push_back(info.step);
        }
        return out;
    }
    std::vector<std::string> parts(const std::string& drive = kDrive) {
        std::vector<std::string> names = rig_.files().list(drive);
        std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
        return names;
    }
    std::size_t parts_of(const std::string& identity) {
        const auto names = parts();
        return static_cast<std::size_t>(std::count_if(
            names.begin(), names.end(),
            [&](const std::string& name) { return identity_of_parts(name) == identity; }));
    }
    std::string identity_of(const std::string& first) {
        const auto found = known_identity(*rig_.engine(), rig_.files(), first);
        EXPECT_TRUE(found);
        return found ? found->identity : "";
    }
    void write(const std::string& path, const std::string& text) {
        File file = rig_.files().open(
            path, {.access = Access::kWrite, .create = true, .truncate = true, .follow = false});
        rig_.engine()->write(file, std::as_bytes(std::span(text)), 0);
    }
    std::string read(const std::string& path) {
        const auto bytes = read_whole(*rig_.engine(), rig_.files(), path);
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    // As "cp -a".
    void copy(const std::string& from, const std::string& to) {
        const Folder opened = rig_.files().open_folder(from);
        rig_.files().make_folder(to);
        for (const std::string& name : opened.list()) {
            const std::string source = join(from, name);
            const FileStatus status = opened.status(name);
            if (status.kind == FileKind::kFolder) {
                copy(source, join(to, name));
            } else if (status.kind == FileKind::kSymbolicLink) {
                rig_.files().symbolic_link(rig_.files().resolve(source), join(to, name));
            } else {
                write(join(to, name), read(source));
                rig_.files().set_modified(join(to, name), status.modified_ns);
            }
        }
    }

    test::CrashRig rig_{2};
};

using Steps = std::vector<std::uint64_t>;

TEST_F(Owners, TheIdentityIsInFolderManifestAndName) {
    const CheckpointInfo info = save("/0/run", 1);
    EXPECT_EQ(info.note, "");
    const std::string identity = identity_of("/0/run");
    EXPECT_TRUE(is_identity(identity));
    const std::string text = read_manifest_text(*rig_.engine(), rig_.files(), info.path);
    EXPECT_EQ(identity_in(text, info.path), identity);
    const Manifest manifest = parse_manifest(text, info.path);
    EXPECT_EQ(manifest.store, identity);
    EXPECT_THAT(manifest.metadata, IsEmpty());  // it is not shown as the caller's
    EXPECT_EQ(parts_of(identity), 1U);
    EXPECT_EQ(save("/0/run", 2).note, "");
    EXPECT_EQ(identity_of("/0/run"), identity);
    EXPECT_EQ(parts_of(identity), 1U);
    EXPECT_THAT(error_of([&] {
                    CheckpointStore store(rig_.engine(), rig_.files(), {"/0/run", kDrive});
                    store.save(numbered(3).state(), {.metadata = {{"penstock.store", true}}});
                }).what(),
                HasSubstr("penstock.store"));
}

// The archived run keeps its shards when a new run has its path, also when the generations of the
// new one have passed those of the old one.
TEST_F(Owners, AFirstFolderThatWasMovedAway) {
    for (std::uint64_t number = 1; number <= 4; ++number) {
        save("/0/run", number, 0);
    }
    const std::string old = identity_of("/0/run");
    rig_.files().rename("/0/run", "/0/archive");
    rig_.files().make_folder("/0/run");
    std::string note;
    for (std::uint64_t number = 11; number <= 18; ++number) {
        note += save("/0/run", number, 2).note;
        EXPECT_EQ(steps("/0/archive"), (Steps{1, 2, 3, 4}));
    }
    EXPECT_EQ(steps("/0/run"), (Steps{17, 18}));
    EXPECT_THAT(note, AllOf(HasSubstr(kDrive), HasSubstr("moved")));
    EXPECT_NE(identity_of("/0/run"), old);
    // It is the same store at its new path: what it removes takes its shards along.
    EXPECT_EQ(parts_of(old), 4U);
    save("/0/archive", 5, 1);
    EXPECT_EQ(identity_of("/0/archive"), old);
    EXPECT_EQ(parts_of(old), 1U);
    EXPECT_EQ(steps("/0/archive"), (Steps{5}));
    EXPECT_EQ(steps("/0/run"), (Steps{17, 18}));
}

TEST_F(Owners, AFirstFolderThatIsNotMounted) {
    for (std::uint64_t number = 1; number <= 3; ++number) {
        save("/0/run", number, 3);
    }
    rig_.files().rename("/0/run", "/0/disk");
    rig_.files().make_folder("/0/run");
    for (std::uint64_t number = 11; number <= 16; ++number) {
        save("/0/run", number, 1);
    }
    rig_.files().rename("/0/run", "/0/hidden");
    rig_.files().rename("/0/disk", "/0/run");
    EXPECT_EQ(steps("/0/run"), (Steps{1, 2, 3}));
    EXPECT_EQ(save("/0/run", 4, 1).step, 4U);
    EXPECT_EQ(steps("/0/run"), (Steps{4}));
    EXPECT_EQ(parts_of(identity_of("/0/run")), 1U);
    EXPECT_EQ(steps("/0/hidden"), (Steps{16}));
}

// Each has its own folder under the same path, and both have one drive.
TEST_F(Owners, TwoContainersOnOneDrive) {
    rig_.files().rename("/0/run", "/0/a");
    rig_.files().make_folder("/0/b");
    const auto in = [&](const std::string& container, const auto& work) {
        rig_.files().rename(container, "/0/run");
        work();
        rig_.files().rename("/0/run", container);
    };
    for (std::uint64_t number = 1; number <= 8; ++number) {
        for (const char* container : {"/0/a", "/0/b"}) {
            in(container, [&] { save("/0/run", number + (container[3] == 'b' ? 100 : 0), 2); });
        }
        in("/0/a", [&] { EXPECT_EQ(steps("/0/run").back(), number); });
        in("/0/b", [&] { EXPECT_EQ(steps("/0/run").back(), number + 100); });
    }
    EXPECT_EQ(steps("/0/a"), (Steps{7, 8}));
    EXPECT_EQ(steps("/0/b"), (Steps{107, 108}));
    EXPECT_EQ(parts().size(), 4U);
}

// The copy saves first, then both in turns. Neither loses a shard that it had when it was made, and
// both go on to remove what is theirs alone.
TEST_F(Owners, ACopiedStore) {
    for (std::uint64_t number = 1; number <= 3; ++number) {
        save("/0/run", number, 3);
    }
    const std::string old = identity_of("/0/run");
    copy("/0/run", "/0/copy");
    const std::string note = save("/0/copy", 101, 3).note;
    EXPECT_THAT(note, AllOf(HasSubstr("copied"), HasSubstr(old), HasSubstr("delete those")));
    EXPECT_EQ(steps("/0/run"), (Steps{1, 2, 3}));
    EXPECT_EQ(steps("/0/copy"), (Steps{2, 3, 101}));
    std::string notes;
    for (std::uint64_t number = 4; number <= 8; ++number) {
        notes += save("/0/run", number, 2).note;
        notes += save("/0/copy", number + 100, 2).note;
        EXPECT_EQ(steps("/0/run"), (Steps{number == 4 ? 3 : number - 1, number}));
        EXPECT_EQ(steps("/0/copy"), (Steps{number == 4 ? 101 : number + 99, number + 100}));
    }
    EXPECT_THAT(notes, HasSubstr("another copy of this store saved there"));
    EXPECT_EQ(parts_of(old), 3U);  // they were of both: left
    EXPECT_EQ(parts().size(), 3U + 2U + 2U);
    EXPECT_NE(identity_of("/0/run"), identity_of("/0/copy"));
}

// The original saves on, then the copy begins: what the copy leads to is gone by the original's own
// rule, and the copy removes nothing of the original.
TEST_F(Owners, ACopyThatBeginsLater) {
    save("/0/run", 1, 2);
    save("/0/run", 2, 2);
    copy("/0/run", "/0/copy");
    save("/0/run", 3, 2);
    save("/0/copy", 101, 1);
    save("/0/copy", 102, 1);
    EXPECT_EQ(steps("/0/run"), (Steps{2, 3}));
    EXPECT_EQ(steps("/0/copy"), (Steps{102}));
}

// A clone of the first disk (a snapshot of its blocks): the same path, inode and device. The first
// of both to save is the store; the other one finds its record in the way.
TEST_F(Owners, AClonedDisk) {
    save("/0/run", 1, 2);
    save("/0/run", 2, 2);
    const auto mine = rig_.disks();
    const auto clone = test::CrashRig::killed(mine);
    const auto use_clone = [&] { rig_.use({clone[0], mine[1]}); };
    const auto use_mine = [&] { rig_.use(mine); };
    save("/0/run", 3, 2);
    use_clone();
    const CheckpointInfo info = save("/0/run", 101, 1);
    EXPECT_THAT(info.note, HasSubstr("another copy of this store saved there"));
    use_mine();
    EXPECT_EQ(steps("/0/run"), (Steps{2, 3}));
    for (std::uint64_t number = 4; number <= 6; ++number) {
        use_mine();
        save("/0/run", number, 1);
        EXPECT_EQ(steps("/0/run"), (Steps{number}));
        use_clone();
        save("/0/run", number + 100, 1);
        EXPECT_EQ(steps("/0/run"), (Steps{number + 100}));
    }
    EXPECT_EQ(parts().size(), 4U);  // 2 and 3 were of the shared identity, and each has its newest
    use_mine();
    EXPECT_EQ(steps("/0/run"), (Steps{6}));
}

// The first folder comes back from a backup, in place; the drive does not.
TEST_F(Owners, ARestoredBackup) {
    save("/0/run", 1, 2);
    save("/0/run", 2, 2);
    copy("/0/run", "/0/backup");
    save("/0/run", 3, 3);
    save("/0/run", 4, 4);
    rig_.files().rename("/0/run", "/0/broken");
    copy("/0/backup", "/0/run");
    const CheckpointInfo info = save("/0/run", 13, 1);
    EXPECT_THAT(info.note, HasSubstr("left"));
    EXPECT_EQ(steps("/0/run"), (Steps{13}));
    EXPECT_EQ(steps("/0/broken"), (Steps{1, 2, 3, 4}));
    EXPECT_EQ(steps("/0/backup"), (Steps{1, 2}));
}

// A copy of hard links has the same file ".store" twice.
TEST_F(Owners, ACopyOfHardLinks) {
    save("/0/run", 1, 2);
    copy("/0/run", "/0/copy");
    rig_.files().remove("/0/copy/.store");
    rig_.files().link("/0/run/.store", "/0/copy/.store");
    save("/0/copy", 101, 1);
    EXPECT_EQ(steps("/0/run"), (Steps{1}));
    save("/0/run", 2, 1);
    EXPECT_EQ(steps("/0/copy"), (Steps{101}));
    EXPECT_EQ(parts().size(), 3U);
}

// Another folder that is away for some saves is known again when it is back.
TEST_F(Owners, AnotherFolderThatIsNotMountedForAWhile) {
    save("/0/run", 1, 1);
    rig_.files().rename(kDrive, "/1/disk");
    rig_.files().make_folder(kDrive);
    for (std::uint64_t number = 2; number <= 4; ++number) {
        save("/0/run", number, 1);
    }
    const auto hidden = parts();
    rig_.files().rename(kDrive, "/1/hidden");
    rig_.files().rename("/1/disk", kDrive);
    const std::string identity = identity_of("/0/run");
    // Shards that its disk was not there to lose look like those of a checkpoint that was moved.
    EXPECT_THAT(save("/0/run", 5, 1).note, HasSubstr("no checkpoint in '/0/run' leads there"));
    EXPECT_EQ(identity_of("/0/run"), identity);
    EXPECT_EQ(parts().size(), 2U);
    rig_.files().rename(kDrive, "/1/disk");
    rig_.files().rename("/1/hidden", kDrive);
    EXPECT_THAT(save("/0/run", 6, 1).note, HasSubstr("no checkpoint in '/0/run' leads there"));
    EXPECT_EQ(parts().size(), 2U);
    EXPECT_EQ(identity_of("/0/run"), identity);
}

// A checkpoint that the user moves out of the store, and back: its shards stay where they are.
TEST_F(Owners, ACheckpointThatIsMovedAway) {
    const std::string path = save("/0/run", 1, 1).path;
    const std::string moved = join("/0", base::last_name(path));
    rig_.files().rename(path, moved);
    for (std::uint64_t number = 2; number <= 5; ++number) {
        EXPECT_THAT(save("/0/run", number, 1).note, HasSubstr("moved away"));
        EXPECT_EQ(steps("/0/run"), (Steps{number}));
        EXPECT_EQ(parts().size(), 2U);
        test::expect_holds(*rig_.engine(), rig_.files(), moved, numbered(1));
    }
    rig_.files().rename(moved, path);
    EXPECT_EQ(save("/0/run", 6, 1).note, "");
    EXPECT_EQ(parts().size(), 1U);
}

// ---- what cannot be read ----

TEST_F(Owners, ARecordThatIsLostOrDamaged) {
    for (const bool is_lost : {true, false}) {
        const std::string first = is_lost ? "/0/lost" : "/0/damaged";
        save(first, 1, 2);
        const std::string old = identity_of(first);
        const std::string record = join(kDrive, record_name(old));
        if (is_lost) {
            rig_.files().remove(record);
        } else {
            write(record, "penstock_store_record 1\n");
        }
        const CheckpointInfo info = save(first, 2, 1);
        EXPECT_THAT(info.note, AllOf(HasSubstr(old), HasSubstr("delete")));
        EXPECT_EQ(parts_of(old), 1U);
        EXPECT_EQ(steps(first), (Steps{2}));
        save(first, 3, 1);
        EXPECT_EQ(parts_of(old), 1U);
        EXPECT_EQ(parts_of(identity_of(first)), 1U);
    }
}

// Between the look at the record and the removal, another copy writes there.
TEST_F(Owners, ARecordThatChangesDuringTheSave) {
    save("/0/run", 1, 1);
    const std::string identity = identity_of("/0/run");
    const std::string record = join(kDrive, record_name(identity));
    const std::string text =
        render(FolderRecord{.identity = identity, .generation = 1, .word = 4711});
    bool is_done = false;
    rig_.disks()[1]->set_watch([&](const simulation::DiskOperation& operation) {
        if (operation.call == simulation::DiskCall::kMakeFolder && !is_done) {
            is_done = true;
            write(record, text);
        }
    });
    const CheckpointInfo info = save("/0/run", 2, 1);
    rig_.disks()[1]->set_watch({});
    EXPECT_TRUE(is_done);
    EXPECT_EQ(parts_of(identity), 2U);
    EXPECT_THAT(info.note, HasSubstr("was left"));
}

TEST_F(Owners, AnIdentityThatIsDamaged) {
    save("/0/run", 1, 1);
    const std::string old = identity_of("/0/run");
    write("/0/run/.store", "penstock_store 1\nidentity ");
    const CheckpointInfo info = save("/0/run", 2, 1);
    EXPECT_THAT(info.note, AllOf(HasSubstr("'/0/run/.store' is damaged"),
                                 HasSubstr("00000001-step-1' was left: another store saved it")));
    EXPECT_EQ(steps("/0/run"), (Steps{1, 2}));
    EXPECT_EQ(parts_of(old), 1U);
    save("/0/run", 3, 1);
    EXPECT_EQ(steps("/0/run"), (Steps{1, 3}));
}

TEST_F(Owners, TheIdentityIsNoLink) {
    write("/0/diary", "mine");
    rig_.files().symbolic_link("/0/diary", "/0/run/.store");
    EXPECT_THAT(error_of([&] { save("/0/run", 1); }).what(), HasSubstr("/0/run/.store"));
    EXPECT_EQ(read("/0/diary"), "mine");
    EXPECT_THAT(rig_.files().list(kDrive), IsEmpty());
}

// A checkpoint of another store that was copied in is read, and neither counted nor removed.
TEST_F(Owners, ACheckpointOfAnotherStore) {
    save("/0/other", 7, 1);
    save("/0/run", 1, 1);
    copy("/0/other/00000001-step-7", "/0/run/00000009-step-7");
    copy("/0/other/00000001-step-7", "/0/run/.removed-00000008-step-7");
    const std::string note = save("/0/run", 2, 1).note;
    EXPECT_THAT(note,
                AllOf(HasSubstr(".removed-00000008-step-7' was left: another store saved it")));
    save("/0/run", 3, 1);
    CheckpointStore store(rig_.engine(), rig_.files(), {"/0/run", kDrive});
    const auto all = store.list();
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0].step, 7U);
    EXPECT_THAT(all[0].note, HasSubstr("another store saved it"));
    EXPECT_EQ(all[1].note, "");
    EXPECT_THAT(error_of([&] { store.remove(9); }).what(), HasSubstr("another store saved it"));
    EXPECT_TRUE(is_there(rig_.files(), "/0/run/.removed-00000008-step-7/manifest.json"));
    EXPECT_EQ(steps("/0/other"), (Steps{7}));
}

// ---- of earlier versions ----

// As an earlier version left it: no identity anywhere, parts by the hash of the first path.
void make_earlier(const test::CrashRig& rig, const std::string& first, const std::string& path) {
    const FileSystem& files = rig.files();
    Manifest manifest = read_manifest(*rig.engine(), files, path);
    manifest.store.clear();
    const std::string parts =
        join(kDrive, fmt::format("{}.{:016x}00000001", base::last_name(path),
                                 stream::content_hash(std::as_bytes(std::span(first)))));
    files.rename(manifest.folders.at(1), parts);
    manifest.folders.at(1) = parts;
    for (const Shard& shard : manifest.shards) {
        if (shard.folder == 1) {
            files.remove(join(path, shard.file));
            files.symbolic_link(join(parts, shard.file), join(path, shard.file));
        }
    }
    const std::string text = render(manifest);
    File file = files.open(join(path, kManifestName), {.access = Access::kWrite, .truncate = true});
    rig.engine()->write(file, std::as_bytes(std::span(text)), 0);
}

TEST_F(Owners, PartsOfAnEarlierVersionGoWithTheCheckpointThatNamesThem) {
    for (std::uint64_t number = 1; number <= 3; ++number) {
        make_earlier(rig_, "/0/run", save("/0/run", number, 3).path);
    }
    rig_.files().remove(join(kDrive, record_name(identity_of("/0/run"))));
    rig_.files().remove("/0/run/.store");
    EXPECT_EQ(steps("/0/run"), (Steps{1, 2, 3}));
    // One that a killed save may have left, or another container: no manifest names it.
    const std::string first = "/0/run";
    const std::string unnamed = fmt::format("{}/00000002-step-9.{:016x}00000002", kDrive,
                                            stream::content_hash(std::as_bytes(std::span(first))));
    rig_.files().make_folder(unnamed);
    const CheckpointInfo info = save("/0/run", 4, 2);
    EXPECT_THAT(info.note, HasSubstr(unnamed));
    EXPECT_EQ(steps("/0/run"), (Steps{3, 4}));
    EXPECT_EQ(parts().size(), 3U);
    save("/0/run", 5, 1);
    EXPECT_EQ(steps("/0/run"), (Steps{5}));
    EXPECT_EQ(parts().size(), 2U);
    EXPECT_TRUE(is_there(rig_.files(), unnamed));
}

// A removal of such a checkpoint that is killed anywhere still takes them along.
TEST_F(Owners, ARemovalOfAnEarlierVersionsPartsIsFinishedByTheNext) {
    save("/0/run", 9, 0);
    make_earlier(rig_, "/0/run", save("/0/run", 1, 0).path);
    save("/0/run", 2, 0);
    const test::Disks before = test::CrashRig::killed(rig_.disks());
    for (std::size_t disk = 0; disk < 2; ++disk) {
        for (std::uint64_t at = 0;; ++at) {
            rig_.use(test::CrashRig::killed(before));
            rig_.disks()[disk]->cut_off_at(rig_.disks()[disk]->operations() + at);
            bool is_removed = true;
            const auto open = [&] {
                return CheckpointStore(rig_.engine(), rig_.files(), {"/0/run", kDrive},
                                       {.shard_bytes = 4096, .lock_wait_ms = 0});
            };
            try {
                open().remove(2);
            } catch (const Error&) {
                is_removed = false;
            }
            rig_.use(test::CrashRig::killed(rig_.disks()));
            CheckpointStore next = open();
            next.collect();
            const bool is_there_still = is_there(rig_.files(), "/0/run/00000002-step-1");
            EXPECT_EQ(parts().size(), is_there_still ? 3U : 2U)
                << at << ::testing::PrintToString(rig_.files().list("/0/run"))
                << ::testing::PrintToString(rig_.files().list(kDrive));
            EXPECT_THAT(scan_folder(rig_.files(), "/0/run").leftovers, IsEmpty());
            ASSERT_FALSE(HasFailure()) << disk << ": " << at;
            if (is_removed && !is_there_still) {
                break;
            }
        }
    }
}

// ---- errors ----

// EIO at each operation of a save on either disk: nothing that a checkpoint leads to goes, and
// nothing of the store's own is taken for another's.
TEST_F(Owners, AnErrorOfAnyOperation) {
    save("/0/run", 1, 1);
    const std::string identity = identity_of("/0/run");
    const test::Disks before = test::CrashRig::killed(rig_.disks());
    for (std::size_t disk = 0; disk < 2; ++disk) {
        for (std::uint64_t at = 0;; ++at) {
            rig_.use(test::CrashRig::killed(before));
            const std::uint64_t target = rig_.disks()[disk]->operations() + at;
            bool is_met = false;
            rig_.disks()[disk]->set_operation_faults(
                [&](const simulation::DiskOperation& operation) {
                    is_met = is_met || operation.number == target;
                    return operation.number == target ? EIO : 0;
                });
            try {
                save("/0/run", 2, 1);
            } catch (const Error&) {  // then the checkpoint before is there
            }
            rig_.disks()[disk]->set_operation_faults({});
            EXPECT_THAT(steps("/0/run"), Not(IsEmpty()));
            save("/0/run", 3, 1);
            EXPECT_EQ(steps("/0/run"), (Steps{3}));
            EXPECT_EQ(identity_of("/0/run"), identity);
            EXPECT_EQ(parts().size(), 1U);
            ASSERT_FALSE(HasFailure()) << "operation " << at << " on disk " << disk;
            if (!is_met) {
                break;
            }
        }
    }
}

}  // namespace
}  // namespace penstock::store
