// SPDX-License-Identifier: Apache-2.0
// What is removed hangs on what was read: the newest checkpoint whose data was read back whole
// stays, whatever the disk did to newer ones.
#include "store_support.hpp"
#include "support/crash_harness.hpp"
#include "support/error_of.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kSavesToARead = 10;  // saves a read back

class ReadBack : public ::testing::Test {
protected:
    ReadBack() {
        rig_.disks().front()->set_watch([this](const simulation::DiskOperation& operation) {
            if (breaks_ && operation.call == simulation::DiskCall::kRename &&
                operation.path.find("/.store") == std::string::npos) {
                ++broken_;
                damage(operation.path);
            }
        });
    }
    ~ReadBack() override { rig_.disks().front()->set_watch({}); }

    // Rot in the first shard of a checkpoint.
    void damage(const std::string& folder) {
        for (const std::string& name : rig_.files().list(folder)) {
            if (name.starts_with("shard-00001")) {
                ASSERT_TRUE(rig_.disks().front()->damage(
                    folder + "/" + name, [](std::vector<std::byte>& bytes) {
                        bytes[bytes.size() - 9] ^= std::byte{4};
                    }));
            }
        }
    }
    [[nodiscard]] CheckpointStore store(StoreOptions options = {.keep = 1}) const {
        return {rig_.engine(), rig_.files(), {"/c"}, options};
    }
    // With other contents each time.
    CheckpointInfo save(CheckpointStore& store) {
        tensors_.change(0, ++seed_);
        return store.save(tensors_.state());
    }
    [[nodiscard]] static std::vector<std::uint64_t> there(const CheckpointStore& store) {
        std::vector<std::uint64_t> out;
        for (const CheckpointInfo& info : store.list()) {
            out.push_back(info.generation);
        }
        return out;
    }
    static void read(Checkpoint& checkpoint, std::size_t tensors) {
        std::vector<std::vector<std::byte>> memory;
        std::vector<TensorRead> wanted;
        for (std::size_t i = 0; i < tensors; ++i) {
            memory.emplace_back(checkpoint.tensors()[i].bytes);
            wanted.push_back({.name = checkpoint.tensors()[i].name, .into = memory.back()});
        }
        static_cast<void>(checkpoint.read(wanted));
    }

    test::CrashRig rig_;
    test::Tensors tensors_{{3000, 70'000}, 1};
    std::uint64_t seed_ = 1;
    bool breaks_ = false;
    int broken_ = 0;
};

TEST_F(ReadBack, OneIsReadBeforeTheFirstRemovalAndThenOneInTen) {
    CheckpointStore store = this->store();
    save(store);
    EXPECT_THAT(there(store), ElementsAre(1U));
    save(store);
    EXPECT_THAT(there(store), ElementsAre(2U));
    for (std::uint64_t i = 3; i < 2 + kSavesToARead; ++i) {
        save(store);
        EXPECT_THAT(there(store), ElementsAre(2U, i));
    }
    save(store);
    EXPECT_THAT(there(store), ElementsAre(2U + kSavesToARead));
}

TEST_F(ReadBack, WhatIsDamagedFailsItsSaveAndRemovesNothingGood) {
    CheckpointStore store = this->store();
    for (std::uint64_t i = 1; i < 2 + kSavesToARead; ++i) {
        save(store);
    }
    EXPECT_THAT(there(store), ElementsAre(2U, 11U));
    breaks_ = true;
    const auto error = support::error_of([&] { return save(store); });
    breaks_ = false;
    ASSERT_TRUE(error);
    EXPECT_GE(broken_, 1);
    EXPECT_EQ(error->reason(), ErrorCode::kDamaged);
    EXPECT_THAT(error->what(), HasSubstr("was read back and is damaged"));
    EXPECT_THAT(there(store), ElementsAre(2U, 11U, 12U));
    // It does not count, and nothing is linked to it: what is saved next is sound.
    const CheckpointInfo next = store.save(tensors_.state());
    EXPECT_EQ(next.linked_shards, 0U);
    EXPECT_THAT(there(store), ElementsAre(2U, 13U));
    EXPECT_TRUE(store.open(next.generation).verify().empty());
}

TEST_F(ReadBack, NothingIsRemovedWhereNothingIsGood) {
    breaks_ = true;
    CheckpointStore store = this->store();
    save(store);
    for (std::uint64_t i = 2; i < 5; ++i) {
        EXPECT_TRUE(support::error_of([&] { return save(store); }));
        EXPECT_EQ(there(store).size(), i);
    }
    breaks_ = false;
    save(store);
    EXPECT_THAT(there(store), ElementsAre(5U));
}

TEST_F(ReadBack, AnOlderOneThatIsGoodIsFound) {
    CheckpointStore store = this->store();
    save(store);
    breaks_ = true;
    EXPECT_TRUE(support::error_of([&] { return save(store); }));
    EXPECT_THAT(there(store), ElementsAre(1U, 2U));
    EXPECT_TRUE(store.open(1).verify().empty());
}

// A new process knows nothing, until it loads.
TEST_F(ReadBack, ALoadOfEverythingCounts) {
    for (const std::size_t tensors : {std::size_t{1}, std::size_t{2}}) {
        CheckpointStore store = this->store();
        const std::uint64_t first = save(store).generation;
        store.open_newest([&](Checkpoint checkpoint) { read(checkpoint, tensors); });
        save(store);
        const bool was_read_again = tensors == 1;
        EXPECT_EQ(there(store).front(), was_read_again ? first + 1 : first);
    }
}

TEST_F(ReadBack, PiecesOfALoadCountTogether) {
    CheckpointStore store = this->store();
    save(store);
    Checkpoint checkpoint = store.open(1);
    read(checkpoint, 1);
    std::vector<std::byte> memory(checkpoint.tensors()[1].bytes);
    const TensorRead rest{.name = checkpoint.tensors()[1].name, .into = memory};
    static_cast<void>(checkpoint.read({&rest, 1}));
    save(store);
    EXPECT_THAT(there(store), ElementsAre(1U, 2U));
}

TEST_F(ReadBack, AVerifyCounts) {
    CheckpointStore store = this->store();
    save(store);
    EXPECT_TRUE(store.open(1).verify().empty());
    save(store);
    EXPECT_THAT(there(store), ElementsAre(1U, 2U));
}

// A generation of the same number is another checkpoint there.
// A shard of the one that is known to be good went since: it counts no more.
TEST_F(ReadBack, OneThatIsNotWholeAnyMoreIsNotGood) {
    CheckpointStore store = this->store({.keep = 1, .incremental = false});
    save(store);
    save(store);
    save(store);
    ASSERT_THAT(there(store), ElementsAre(2U, 3U));
    rig_.files().remove(store.list().front().path + "/shard-00001.safetensors");
    breaks_ = true;
    EXPECT_TRUE(support::error_of([&] { return save(store); }));
    EXPECT_THAT(there(store), ::testing::Contains(3U));
    EXPECT_TRUE(store.open(3).verify().empty());
}

TEST_F(ReadBack, NothingIsKnownOfAFolderThatCameInItsPlace) {
    CheckpointStore store = this->store();
    save(store);
    save(store);
    EXPECT_THAT(there(store), ElementsAre(2U));
    rig_.files().rename("/c", "/old");
    {
        CheckpointStore other = this->store({.keep = 0});
        save(other);
        damage(save(other).path);
    }
    save(store);
    EXPECT_THAT(there(store), ElementsAre(3U));
}

TEST_F(ReadBack, IsAnOptionAndNeedsChecksums) {
    breaks_ = true;
    for (const bool checksums : {true, false}) {
        StoreOptions options{.keep = 1, .checksums = checksums};
        options.read_back = !checksums;
        CheckpointStore store = this->store(options);
        for (int i = 0; i < 3; ++i) {
            save(store);
            EXPECT_EQ(there(store).size(), 1U);
        }
    }
}

TEST_F(ReadBack, ItsErrorIsThatOfASaveInTheBackground) {
    CheckpointStore store = this->store();
    save(store);
    breaks_ = true;
    const PendingSave pending = store.save_async(tensors_.state());
    const auto error = support::error_of([&] { return pending.result(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kDamaged);
}

}  // namespace
}  // namespace penstock
