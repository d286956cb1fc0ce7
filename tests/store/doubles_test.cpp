// SPDX-License-Identifier: Apache-2.0
// Folders that were copied by hand within a store. A generation that two have names neither, and
// neither goes, or counts, because of the other. A copy under another name leads to the shards of
// its original in other folders, and keeps them.
#include "base/path.hpp"
#include "store/keep/retention.hpp"
#include "store/keep/store_folder.hpp"
#include "store/read/stored_source.hpp"
#include "store/store_support.hpp"
#include "support/crash_harness.hpp"
#include "support/error_of.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::store {
namespace {

using test::expect_holds;
using test::read_whole;
using test::Tensors;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const StoreOptions kAll{.shard_bytes = 4096, .incremental = false, .lock_wait_ms = 0};

// `read_back`: one more may stay.
StoreOptions keeping(std::uint32_t keep, bool read_back = false) {
    StoreOptions options = kAll;
    options.keep = keep;
    options.read_back = read_back;
    return options;
}

class Doubles : public ::testing::Test {
protected:
    [[nodiscard]] CheckpointStore store(const StoreOptions& options = kAll) const {
        return {rig_.engine(), rig_.files(), folders_, options};
    }
    CheckpointInfo save(CheckpointStore& store, std::uint64_t step = 0,
                        CheckpointMetadata metadata = {}) {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            tensors_.change(i, ++seed_);
        }
        return store.save(tensors_.state(), {.step = step, .metadata = std::move(metadata)});
    }
    // As `cp -a` does.
    void copy(const std::string& from, const std::string& to) const {
        rig_.files().make_folder(to);
        const Folder folder = rig_.files().open_folder(from);
        for (const std::string& name : folder.list()) {
            const std::string inside = join(from, name);
            const std::string target = join(to, name);
            switch (folder.status(name).kind) {
                case FileKind::kFolder:
                    copy(inside, target);
                    break;
                case FileKind::kSymbolicLink:
                    rig_.files().symbolic_link(rig_.files().resolve(inside), target);
                    break;
                default: {
                    File file =
                        rig_.files().open(target, {.access = Access::kWrite, .create = true});
                    rig_.engine()->write(file, read_whole(*rig_.engine(), rig_.files(), inside), 0);
                }
            }
        }
    }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const CheckpointEntry& entry :
             scan_folder(rig_.files(), folders_.front()).checkpoints) {
            out.push_back(entry.name);
        }
        return out;
    }
    // Another run goes on from a copy of the store, and its first checkpoint is moved here: it is
    // whole, and has this store's identity.
    void move_in_from_a_copy(std::uint64_t step) {
        const std::string there = "/0/other" + std::to_string(step);
        copy(folders_.front(), there);
        CheckpointStore other(rig_.engine(), rig_.files(), {there}, kAll);
        const std::string path = save(other, step).path;
        rig_.files().rename(path, join(folders_.front(), base::last_name(path)));
    }
    // `checkpoint`: its path on the first disk, "/store/...".
    void damage(const std::string& checkpoint) const {
        ASSERT_TRUE(rig_.disks().front()->damage(
            join(checkpoint, shard_name(1)),
            [](std::vector<std::byte>& bytes) { bytes[bytes.size() - 9] ^= std::byte{4}; }));
    }

    test::CrashRig rig_{2};
    std::vector<std::string> folders_{"/0/store"};
    Tensors tensors_{std::vector<std::uint64_t>(8, 1024), 1};
    std::uint64_t seed_ = 1;
};

TEST_F(Doubles, ANumberThatTwoHaveNamesNeither) {
    CheckpointStore store = this->store();
    save(store);
    const CheckpointInfo second = save(store);
    const Tensors saved = tensors_;
    save(store);
    copy(second.path, "/0/store/00000002-step-9");
    const auto source = [&](std::uint64_t generation) {
        return open_source(rig_.engine(), rig_.files(), "/0/store", generation);
    };
    const std::vector<std::function<void()>> calls{
        [&] { static_cast<void>(store.open(2)); }, [&] { store.pin(2); },
        [&] { store.pin(2, false); }, [&] { store.remove(2); },
        [&] { static_cast<void>(source(2)); }};
    for (const auto& call : calls) {
        const std::optional<Error> error = support::error_of([&] { return call(), 0; });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error->what(), AllOf(HasSubstr("'00000002-step-0', '00000002-step-9'"),
                                         HasSubstr("move all")));
    }
    EXPECT_THAT(store.list(), SizeIs(4));
    EXPECT_THAT(names(), ElementsAre("00000001-step-0", "00000002-step-0", "00000002-step-9",
                                     "00000003-step-0"));
    expect_holds(*rig_.engine(), rig_.files(), second.path, saved);
    EXPECT_EQ(store.open(3).info().generation, 3U);
    static_cast<void>(source(3));
    rig_.files().rename("/0/store/00000002-step-9", "/0/elsewhere");
    EXPECT_EQ(store.open(2).info().path, second.path);
    store.remove(2);
    EXPECT_THAT(names(), ElementsAre("00000001-step-0", "00000003-step-0"));
}

// Its copy has a problem, and comes first in the search from the newest back.
TEST_F(Doubles, TheNewestIsFoundBesideItsCopy) {
    CheckpointStore store = this->store();
    save(store);
    const CheckpointInfo newest = save(store);
    copy(newest.path, "/0/store/00000002-step-9");
    std::vector<CheckpointInfo> skipped;
    const auto found = store.latest(&skipped);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->path, newest.path);
    ASSERT_THAT(skipped, SizeIs(1));
    EXPECT_EQ(skipped.front().path, "/0/store/00000002-step-9");
}

TEST_F(Doubles, RetentionCountsAGenerationOnce) {
    CheckpointStore store = this->store(keeping(2));
    save(store, 1);
    move_in_from_a_copy(40);
    save(store, 3);
    EXPECT_THAT(names(), ElementsAre("00000002-step-40", "00000003-step-3"));
    move_in_from_a_copy(50);
    rig_.files().rename("/0/store/00000004-step-50", "/0/fourth");
    move_in_from_a_copy(52);
    rig_.files().rename("/0/fourth", "/0/store/00000004-step-50");
    save(store, 5);
    EXPECT_THAT(names(), ElementsAre("00000004-step-50", "00000004-step-52", "00000005-step-5"));
}

TEST(DoublesOutdated, NeitherGoesBecauseOfTheOther) {
    std::vector<CheckpointInfo> infos;
    const auto add = [&](std::uint64_t generation, std::uint64_t step, double loss) {
        CheckpointInfo& info = infos.emplace_back();
        info.generation = generation;
        info.step = step;
        info.metadata = {{"loss", loss}};
    };
    add(1, 1, 5);
    add(2, 2, 1);
    add(2, 20, 1.5);
    add(3, 3, 2);
    add(4, 4, 9);
    add(4, 40, 9);
    EXPECT_THAT(outdated(infos, keeping(1)), ElementsAre(0U, 1U, 2U, 3U));
    EXPECT_THAT(outdated(infos, keeping(2)), ElementsAre(0U, 1U, 2U));
    EXPECT_THAT(outdated(infos, keeping(3)), ElementsAre(0U));
    StoreOptions best = keeping(1);
    best.keep_best = 2;
    best.metric = {.name = "loss"};
    EXPECT_THAT(outdated(infos, best), ElementsAre(0U));
    infos[5].problem = "it is damaged";
    EXPECT_THAT(outdated(infos, keeping(1)), ElementsAre(0U, 1U, 2U, 3U));
    infos[4].problem = "it is damaged";
    EXPECT_THAT(outdated(infos, keeping(1)), ElementsAre(0U, 1U, 2U));
}

// A copy under another number has the metric of its original, and a problem: best() passes it over.
TEST_F(Doubles, ACopyIsNotTheBestInPlaceOfItsOriginal) {
    StoreOptions options = keeping(1);
    options.keep_best = 1;
    options.metric = {.name = "loss"};
    CheckpointStore store = this->store(options);
    const CheckpointInfo best = save(store, 0, {{"loss", 1.0}});
    copy(best.path, "/0/store/00000050-step-0");
    for (int i = 0; i < 3; ++i) {
        save(store, 0, {{"loss", 5.0}});
        const auto found = store.best(options.metric, 1);
        ASSERT_THAT(found, SizeIs(1));
        EXPECT_EQ(found.front().path, best.path);
    }
}

// A copy that was read says nothing of its original.
TEST_F(Doubles, ACopyThatIsGoodMakesNoOriginalGood) {
    std::string second;
    {
        CheckpointStore before = store();
        save(before);
        second = save(before).path;
    }
    CheckpointStore store = this->store(keeping(1, true));
    copy(second, "/0/store/00000050-step-0");
    damage(second.substr(std::string_view("/0").size()));
    EXPECT_THAT(store.open(50).verify(), IsEmpty());
    rig_.disks().front()->set_watch([this](const simulation::DiskOperation& operation) {
        if (operation.call == simulation::DiskCall::kRename &&
            operation.path.find(kUnfinishedPrefix) != std::string::npos) {
            damage(operation.path);
        }
    });
    const std::optional<Error> error = support::error_of([&] { return save(store); });
    rig_.disks().front()->set_watch({});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kDamaged);
    EXPECT_THAT(names(), Contains("00000001-step-0"));
}

// ---- several folders ----

class DoublesOfParts : public Doubles {
protected:
    DoublesOfParts() { folders_ = {"/0/store", "/1/store"}; }
};

// Shards stay when the original goes, and are reported; then the copy goes without them.
TEST_F(DoublesOfParts, ACopyKeepsTheShardsOfItsOriginal) {
    for (const std::string name : {"00000050-step-0", "00000001-step-7", "best"}) {
        folders_ = {"/0/" + name, "/1/" + name};
        CheckpointStore store = this->store(keeping(1));
        const CheckpointInfo first = save(store);
        const Tensors saved = tensors_;
        const std::string there = join(folders_.front(), name);
        copy(first.path, there);
        const std::string mark = join(there, kPinnedName);
        static_cast<void>(rig_.files().open(mark, {.access = Access::kWrite, .create = true}));
        const std::string note = save(store).note;
        EXPECT_FALSE(is_there(rig_.files(), first.path)) << name;
        expect_holds(*rig_.engine(), rig_.files(), there, saved);
        EXPECT_THAT(note, HasSubstr("other checkpoint leads there"));
        EXPECT_THAT(scan_folder(rig_.files(), folders_.front()).leftovers, IsEmpty());
        save(store);
        expect_holds(*rig_.engine(), rig_.files(), there, saved);
    }
}

// The disk was moved while the store is open, and its old path leads to it: links of the copy do.
TEST_F(DoublesOfParts, ACopyKeepsItsShardsOnADiskThatWasMoved) {
    CheckpointStore store = this->store(keeping(1));
    const CheckpointInfo first = save(store);
    const Tensors saved = tensors_;
    copy(first.path, "/0/store/best");
    rig_.files().rename("/1/store", "/1/moved");
    rig_.files().symbolic_link("/1/moved", "/1/store");
    save(store);
    save(store);
    expect_holds(*rig_.engine(), rig_.files(), "/0/store/best", saved);
}

// A removal that met its pin was killed before it gave the name back. Its manifest has another
// name.
TEST_F(DoublesOfParts, APinnedCopyThatARemovalHadRenamedComesBack) {
    CheckpointStore store = this->store();
    const CheckpointInfo first = save(store);
    const Tensors saved = tensors_;
    const std::string path = join(folders_.front(), "00000050-step-0");
    copy(first.path, path);
    store.pin(50);
    for (const char* const suffix : {"", "-2"}) {
        rig_.files().rename(path, join(folders_.front(), removed_name("00000050-step-0") + suffix));
        store.collect();
        expect_holds(*rig_.engine(), rig_.files(), path, saved);
    }
}

// A removal was killed before it gave the name back, and somebody else has that name by now.
TEST_F(DoublesOfParts, APinnedOneWhoseNameIsTakenStays) {
    CheckpointStore store = this->store(keeping(1));
    const CheckpointInfo first = save(store);
    const Tensors saved = tensors_;
    store.pin(first.generation);
    copy(first.path, "/0/copy");
    const std::string hidden = join(folders_.front(), removed_name("00000001-step-0"));
    rig_.files().rename(first.path, hidden);
    rig_.files().rename("/0/copy", first.path);
    const std::string note = save(store).note;
    EXPECT_THAT(note, AllOf(HasSubstr(hidden), HasSubstr("pinned")));
    expect_holds(*rig_.engine(), rig_.files(), hidden, saved);
    expect_holds(*rig_.engine(), rig_.files(), first.path, saved);
}

}  // namespace
}  // namespace penstock::store
