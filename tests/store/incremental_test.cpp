// SPDX-License-Identifier: Apache-2.0
// What did not change is linked, not written; every folder stays whole all the same.
#include "store/keep/retention.hpp"
#include "store/keep/store_folder.hpp"
#include "store/store_support.hpp"
#include "store/write/shards.hpp"
#include "stream/checksum.hpp"
#include "support.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <random>
#include <set>

namespace penstock::store {
namespace {

using test::expect_holds;
using test::Tensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- which shard (pure) ----

ShardHistory linkable(std::size_t tensors) {
    return {.tensors = tensors, .linkable = true};
}

TEST(Shards, TheFirstTimeInTheOrderOfTheState) {
    const std::vector<TensorHistory> tensors(5, TensorHistory{.bytes = 40});
    const auto plans = plan_shards(tensors, {}, 100);
    ASSERT_EQ(plans.size(), 3U);
    EXPECT_THAT(plans[0].tensors, ElementsAre(0, 1));
    EXPECT_THAT(plans[2].tensors, ElementsAre(4));
    EXPECT_EQ(plans[0].bytes, 80U);
    EXPECT_EQ(plans[0].linked, kNoShard);
    EXPECT_TRUE(plan_shards({}, {}, 100).empty());
    // A tensor larger than a shard has one to itself.
    const std::vector<TensorHistory> large{{.bytes = 10}, {.bytes = 500}, {.bytes = 10}};
    EXPECT_EQ(plan_shards(large, {}, 100).size(), 3U);
}

TEST(Shards, TheirNamesSayWhichHaveSlices) {
    EXPECT_EQ(shard_name(7), "shard-00007.safetensors");
    EXPECT_EQ(shard_name(2'000'001, true), "shard-2000001.slices.safetensors");
    for (const bool slices : {false, true}) {
        EXPECT_TRUE(is_shard_name(shard_name(123, slices)));
        EXPECT_EQ(is_name_of_slices(shard_name(123, slices)), slices);
    }
    for (const char* name :
         {"shard-.slices.safetensors", "shard-0001.slices.safetensors", "slices.safetensors",
          "shard-00001.slice.safetensors", "shard-00001.slices", "shard-0000a.slices.safetensors",
          "a-shard-00001.slices.safetensors", "shard-00001.slices.slices.safetensors"}) {
        EXPECT_FALSE(is_shard_name(name)) << name;
        EXPECT_FALSE(is_name_of_slices(name)) << name;
    }
}

TEST(Shards, UnchangedOnesAreLinkedAndChangedOnesStayTogether) {
    std::vector<TensorHistory> tensors(4, TensorHistory{50, 0, false, 1});
    tensors[2].shard = tensors[3].shard = 1;
    tensors[2].changed = tensors[3].changed = true;
    const std::vector<ShardHistory> last{linkable(2), linkable(2)};
    const auto plans = plan_shards(tensors, last, 100);
    ASSERT_EQ(plans.size(), 2U);
    EXPECT_EQ(plans[0].linked, 0U);
    EXPECT_THAT(plans[0].tensors, ElementsAre(0, 1));
    EXPECT_EQ(plans[1].linked, kNoShard);
    EXPECT_THAT(plans[1].tensors, ElementsAre(2, 3));
}

TEST(Shards, OneThatLostATensorIsNotLinked) {
    const std::vector<TensorHistory> tensors{{50, 0, false, 1}};
    const std::vector<ShardHistory> last{linkable(2)};
    EXPECT_EQ(plan_shards(tensors, last, 100).front().linked, kNoShard);
    const std::vector<ShardHistory> gone{{.tensors = 1, .linkable = false}};
    EXPECT_EQ(plan_shards(tensors, gone, 100).front().linked, kNoShard);
}

TEST(Shards, WhatChangesTogetherComesToLieTogether) {
    // Eight shards of two tensors each; of every pair one changes, forever.
    std::vector<TensorHistory> tensors;
    for (std::size_t i = 0; i < 16; ++i) {
        tensors.push_back({50, i / 2, i % 2 == 0, 1});
    }
    const std::vector<ShardHistory> last(8, linkable(2));
    const auto plans = plan_shards(tensors, last, 100);
    ASSERT_EQ(plans.size(), 8U);
    for (const ShardPlan& plan : plans) {
        ASSERT_EQ(plan.tensors.size(), 2U);
        EXPECT_EQ(plan.tensors[0] % 2, plan.tensors[1] % 2);
    }
}

constexpr std::size_t kNoSlice = kWhole;

// Slices by the numbers of their tensors; no history.
std::vector<TensorHistory> sliced(std::initializer_list<std::size_t> tensors) {
    std::vector<TensorHistory> out;
    for (const std::size_t tensor : tensors) {
        out.push_back({.bytes = 10, .slice_of = tensor});
    }
    return out;
}

TEST(Shards, SlicesOfOneTensorLieInDifferentOnes) {
    // The first slice of each together, and the second of each: not a shard for each of them.
    const auto plans = plan_shards(sliced({0, 0, 1, 1, kNoSlice, 2, 2, kNoSlice, 2}), {}, 1000);
    ASSERT_EQ(plans.size(), 3U);
    EXPECT_THAT(plans[0].tensors, ElementsAre(0, 2, 4, 5, 7));
    EXPECT_THAT(plans[1].tensors, ElementsAre(1, 3, 6));
    EXPECT_THAT(plans[2].tensors, ElementsAre(8));
    EXPECT_EQ(plans[1].bytes, 30U);
}

TEST(Shards, OneSliceThatChangedNeedsNoShardMore) {
    std::vector<TensorHistory> tensors = sliced({0, 0, 1, kNoSlice});
    tensors[1].changed = tensors[2].changed = tensors[3].changed = false;
    const auto plans = plan_shards(tensors, {}, 1000);
    ASSERT_EQ(plans.size(), 2U);
    EXPECT_THAT(plans[0].tensors, ElementsAre(0));
    EXPECT_THAT(plans[1].tensors, ElementsAre(1, 2, 3));
}

// Any history: each tensor in one shard, and none with two slices of one.
TEST(Shards, AnyHistoryKeepsSlicesApart) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 random(seed);
        std::vector<TensorHistory> tensors(1 + random() % 40);
        for (TensorHistory& tensor : tensors) {
            tensor.bytes = random() % 50;
            tensor.slice_of = random() % 4 == 0 ? kNoSlice : random() % 6;
        }
        std::vector<ShardHistory> last;
        for (int save = 0; save < 6; ++save) {
            const auto plans = plan_shards(tensors, last, 100);
            std::vector<std::size_t> placed(tensors.size(), 0);
            last.clear();
            for (std::size_t s = 0; s < plans.size(); ++s) {
                std::set<std::size_t> names;
                for (const std::size_t i : plans[s].tensors) {
                    ++placed[i];
                    tensors[i].shard = s;
                    EXPECT_TRUE(tensors[i].slice_of == kNoSlice ||
                                names.insert(tensors[i].slice_of).second)
                        << seed;
                }
                last.push_back({plans[s].tensors.size(), random() % 8 != 0});
            }
            EXPECT_THAT(placed, ::testing::Each(1U)) << seed;
            for (TensorHistory& tensor : tensors) {
                tensor.changed_before = tensor.changed ? save + 1 : tensor.changed_before;
                tensor.changed = random() % 3 == 0;
            }
        }
    }
}

// ---- in the store ----

class Incremental : public ::testing::Test {
protected:
    [[nodiscard]] CheckpointStore store(const StoreOptions& options) {
        return {rig_.engine(), rig_.files(), {"/store"}, options};
    }
    [[nodiscard]] CheckpointStore store() { return store({.keep = 3, .shard_bytes = 8192}); }
    [[nodiscard]] Manifest manifest(const CheckpointInfo& info) {
        return read_manifest(*rig_.engine(), rig_.files(), info.path);
    }
    test::CrashRig rig_;
};

TEST_F(Incremental, WhatDidNotChangeIsLinkedAndCounted) {
    Tensors tensors(std::vector<std::uint64_t>(20, 2048), 1);  // each a shard
    CheckpointStore store = this->store();
    const CheckpointInfo first = store.save(tensors.state());
    EXPECT_EQ(first.shards, 20U);
    EXPECT_EQ(first.linked_shards, 0U);
    EXPECT_EQ(first.written_bytes, tensors.bytes());
    tensors.change(3, 1);
    tensors.change(17, 1);
    const CheckpointInfo second = store.save(tensors.state());
    EXPECT_EQ(second.linked_shards, 18U);
    EXPECT_EQ(second.written_bytes, tensors.bytes() / 10);
    expect_holds(*rig_.engine(), rig_.files(), second.path, tensors);
    // A linked one keeps its name, its id and the generation that wrote it.
    const Manifest before = manifest(first);
    const Manifest after = manifest(second);
    std::size_t same = 0;
    for (const Shard& shard : after.shards) {
        for (const Shard& old : before.shards) {
            if (old.id == shard.id) {
                EXPECT_EQ(old.file, shard.file);
                EXPECT_EQ(shard.generation, 1U);
                EXPECT_EQ(rig_.files().status(join(second.path, shard.file)).links, 2U);
                ++same;
            }
        }
    }
    EXPECT_EQ(same, 18U);
    for (std::size_t i = 0; i < after.tensors.size(); ++i) {
        EXPECT_EQ(after.tensors[i].slices.front().changed, i == 3 || i == 17 ? 2U : 1U);
    }
}

TEST_F(Incremental, AStateOfWhichAPartRestsSettles) {
    // Every second tensor rests, mixed into the same shards at first.
    Tensors tensors(std::vector<std::uint64_t>(40, 256), 1);  // 8 in a shard
    CheckpointStore store = this->store();
    store.save(tensors.state());
    std::vector<std::uint64_t> written;
    for (std::uint64_t save = 1; save <= 4; ++save) {
        for (std::size_t i = 0; i < tensors.size(); i += 2) {
            tensors.change(i, save);
        }
        const CheckpointInfo info = store.save(tensors.state());
        written.push_back(info.written_bytes);
        expect_holds(*rig_.engine(), rig_.files(), info.path, tensors);
    }
    EXPECT_EQ(written[0], tensors.bytes());  // torn apart, once
    EXPECT_THAT(std::vector(written.begin() + 1, written.end()),
                ElementsAre(tensors.bytes() / 2, tensors.bytes() / 2, tensors.bytes() / 2));
}

TEST_F(Incremental, TheNextProcessGoesOnWhereTheLastOneEnded) {
    Tensors tensors({2048, 2048, 2048}, 1);
    store().save(tensors.state());
    tensors.change(1, 1);
    const CheckpointInfo info = store().save(tensors.state());
    EXPECT_EQ(info.linked_shards, 2U);
    // Without checksums nothing is known to be unchanged; and on request all is written.
    EXPECT_EQ(
        store({.shard_bytes = 8192, .incremental = false}).save(tensors.state()).linked_shards, 0U);
    EXPECT_EQ(store({.shard_bytes = 8192, .checksums = false}).save(tensors.state()).linked_shards,
              0U);
    EXPECT_EQ(store().save(tensors.state()).linked_shards, 0U);  // the last one has no sums
    EXPECT_EQ(store().save(tensors.state()).linked_shards, 3U);
}

TEST_F(Incremental, ADamagedOrMissingShardIsWrittenAgain) {
    Tensors tensors({2048, 2048, 2048}, 1);
    std::optional<CheckpointStore> store(this->store());
    const CheckpointInfo first = store->save(tensors.state());
    rig_.files().remove(join(first.path, "shard-00002.safetensors"));
    const CheckpointInfo second = store->save(tensors.state());
    store.reset();
    EXPECT_EQ(second.problem, "");
    EXPECT_EQ(second.linked_shards, 2U);
    expect_holds(*rig_.engine(), rig_.files(), second.path, tensors);
    // In the next process, too, which does not go by a checkpoint that is not whole.
    rig_.files().remove(join(second.path, "shard-00001.safetensors"));
    const CheckpointInfo third = this->store().save(tensors.state());
    expect_holds(*rig_.engine(), rig_.files(), third.path, tensors);
}

// A copy of a store keeps the times of files, or only their whole seconds, or neither.
TEST_F(Incremental, ACopyIsLinkedWhereItKeptTheTimesOfFiles) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    const Tensors tensors({2048, 2048, 2048}, 1);
    for (const std::int64_t off : {kSecond, std::int64_t{0}, -3 * kSecond, std::int64_t{1},
                                   std::int64_t{100}, -kSecond / 2}) {
        rig_.use(test::Disks{std::make_shared<simulation::FakeDisk>(
            DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1)});
        const CheckpointInfo info = store().save(tensors.state());
        for (const bool seconds : {false, true}) {
            if (seconds && off >= kSecond) {
                continue;  // later than the save: that is an edit
            }
            for (const Shard& shard : manifest(info).shards) {
                const std::string path = join(info.path, shard.file);
                const std::int64_t time = rig_.files().status(path).modified_ns + off;
                rig_.files().set_modified(path, seconds ? time - time % kSecond : time);
            }
            const CheckpointInfo next = store().save(tensors.state());
            const bool linked = seconds || off % kSecond == 0;
            EXPECT_EQ(next.linked_shards, linked ? 3U : 0U) << off;
            EXPECT_EQ(next.note.empty(), linked) << next.note;
            expect_holds(*rig_.engine(), rig_.files(), next.path, tensors);
        }
    }
}

TEST_F(Incremental, WhereLinksFailItIsWritten) {
    for (const int refused : {EMLINK, EXDEV, EPERM, EOPNOTSUPP, EIO, ESTALE, ELOOP}) {
        rig_.use(test::Disks{std::make_shared<simulation::FakeDisk>(
            DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1)});
        Tensors tensors({2048, 2048, 2048}, 1);
        CheckpointStore store = this->store();
        store.save(tensors.state());
        tensors.change(0, 1);
        rig_.disks().front()->set_operation_faults([&](const simulation::DiskOperation& operation) {
            return operation.call == simulation::DiskCall::kLink ? refused : 0;
        });
        const CheckpointInfo info = store.save(tensors.state());
        rig_.disks().front()->set_operation_faults({});
        EXPECT_EQ(info.linked_shards, 0U);
        EXPECT_EQ(info.written_bytes, tensors.bytes());
        EXPECT_THAT(info.note, HasSubstr("cannot be linked"));
        expect_holds(*rig_.engine(), rig_.files(), info.path, tensors);
        EXPECT_EQ(manifest(info).tensors[1].slices.front().changed, 1U);
        // It would not be written either: the save fails.
        rig_.disks().front()->set_operation_faults([&](const simulation::DiskOperation& operation) {
            return operation.call == simulation::DiskCall::kLink ? ENOSPC : 0;
        });
        EXPECT_EQ(test::error_of([&] { store.save(tensors.state()); }).system_errno(), ENOSPC);
        rig_.disks().front()->set_operation_faults({});
        expect_holds(*rig_.engine(), rig_.files(), store.latest()->path, tensors);
    }
}

TEST_F(Incremental, RandomStatesAndRandomChanges) {
    std::mt19937_64 random(20261121);
    const auto below = [&](std::uint64_t limit) { return random() % limit; };
    for (int round = 0; round < 30; ++round) {
        rig_.use(test::Disks{std::make_shared<simulation::FakeDisk>(
            DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, random())});
        std::vector<std::uint64_t> counts(1 + below(12));
        for (std::uint64_t& count : counts) {
            count = below(8) == 0 ? 0 : below(5000);
        }
        Tensors tensors(counts, random());
        CheckpointStore store = this->store(
            {.keep = static_cast<std::uint32_t>(1 + below(3)), .shard_bytes = 1 + below(30'000)});
        store.save(tensors.state());
        for (int save = 0; save < 6; ++save) {
            std::uint64_t changed = 0;
            for (std::size_t i = 0; i < tensors.size(); ++i) {
                if (below(3) == 0) {
                    tensors.change(i, random());
                    changed += tensors.data(i).size();
                }
            }
            const CheckpointInfo info = store.save(tensors.state());
            EXPECT_GE(info.written_bytes, changed);
            EXPECT_LE(info.written_bytes, tensors.bytes());
            EXPECT_EQ(info.problem, "");
        }
        const auto all = store.list();
        for (const CheckpointInfo& info : all) {
            std::map<std::string, std::vector<std::byte>> found;
            EXPECT_TRUE(test::look_at(*rig_.engine(), rig_.files(), info.path, found));
        }
        expect_holds(*rig_.engine(), rig_.files(), all.back().path, tensors);
        ASSERT_FALSE(HasFailure()) << "round " << round;
    }
}

TEST(IncrementalOnDisk, WhatWasEditedSinceIsWrittenAgain) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const FileSystem files = FileSystem::local();
    CheckpointStore store(engine, files, {folder.path()}, {.shard_bytes = 8192});
    const Tensors tensors({2048, 2048, 2048, 1 << 20}, 1);
    store.save(tensors.state());
    const CheckpointInfo whole = store.save(tensors.state());
    EXPECT_EQ(whole.linked_shards, 4U);
    for (const Shard& shard : read_manifest(*engine, files, whole.path).shards) {
        const std::vector<std::byte> bytes(8, std::byte{0x5a});
        const File file =
            files.open(join(store.latest()->path, shard.file), {.access = Access::kWrite});
        engine->write(file, bytes, shard.bytes - bytes.size());
        const CheckpointInfo info = store.save(tensors.state());
        EXPECT_EQ(info.linked_shards, 3U);
        expect_holds(*engine, files, info.path, tensors);
    }
}

// As on Lustre, or with a time that `touch -d` or tar gave it.
TEST(IncrementalOnDisk, WhatWasEditedSinceIsWrittenAgainWhereTimesAreWholeSeconds) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const FileSystem files = FileSystem::local();
    CheckpointStore store(engine, files, {folder.path()}, {.shard_bytes = 8192});
    const Tensors tensors({2048, 2048, 2048}, 1);
    const CheckpointInfo first = store.save(tensors.state());
    const Manifest manifest = read_manifest(*engine, files, first.path);
    const auto cut = [&](const Shard& shard, std::int64_t time_ns) {
        files.set_modified(join(first.path, shard.file), time_ns - time_ns % kSecond);
    };
    for (const Shard& shard : manifest.shards) {
        cut(shard, first.saved_unix_ns);
    }
    EXPECT_EQ(store.save(tensors.state()).linked_shards, 3U);
    const Shard& shard = manifest.shards.front();
    const std::vector<std::byte> bytes(8, std::byte{0x5a});
    const File file = files.open(join(first.path, shard.file), {.access = Access::kWrite});
    engine->write(file, bytes, shard.bytes - bytes.size());
    cut(shard, first.saved_unix_ns + 2 * kSecond);
    const CheckpointInfo info = store.save(tensors.state());
    EXPECT_EQ(info.linked_shards, 2U);
    EXPECT_NE(info.note, "");
    expect_holds(*engine, files, info.path, tensors);
}

TEST(IncrementalOnDisk, LinksAreTheFileSystemsOwn) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const FileSystem files = FileSystem::local();
    CheckpointStore store(engine, files, {folder.path()}, {.keep = 1, .shard_bytes = 1 << 20});
    Tensors tensors(std::vector<std::uint64_t>(10, 1 << 18), 1);  // 1 MiB each
    store.save(tensors.state());
    tensors.change(4, 1);
    const CheckpointInfo info = store.save(tensors.state());
    EXPECT_EQ(info.linked_shards, 9U);
    EXPECT_EQ(info.written_bytes, tensors.bytes() / 10);
    expect_holds(*engine, files, info.path, tensors);
    // Retention took the first one; the links are what is left of it.
    EXPECT_EQ(store.list().size(), 1U);
    EXPECT_EQ(files.status(join(info.path, "shard-00001.safetensors")).links, 1U);
}

}  // namespace
}  // namespace penstock::store
