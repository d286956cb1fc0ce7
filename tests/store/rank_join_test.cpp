// SPDX-License-Identifier: Apache-2.0
// Saves by ranks that do not have the same: what is joined, and what is refused on all.
#include "store/keep/store_folder.hpp"
#include "store/rank_saves.hpp"
#include "store/rank_state.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(RankSaves, OtherStructureIsAnErrorOnAll) {
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1);
        State own = state.state();
        own.structure.replace(own.structure.find("[1]"), 3, ranks.number() == 0 ? "[1]" : "[2]");
        store.save(own, {.step = 1});
    });
    EXPECT_THAT(errors, Each(HasSubstr("state: another value on rank 1 of 2 (this process) than on "
                                       "rank 0 of 2 (this process)")));
    EXPECT_FALSE(reader().latest());
    EXPECT_THAT(leftovers(), IsEmpty());
}

TEST_F(RankSaves, OtherWholeTensorsAreAnErrorOnAll) {
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1, 300 + ranks.number());
        store.save(state.state(), {.step = 1});
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("tensor 'head' is F32 [1, 300] on rank 0"),
                                   HasSubstr("F32 [1, 301] on rank 1"))));
}

TEST_F(RankSaves, WholeTensorsMayBeOnSomeRanksOnly) {
    for (const std::uint64_t number : {1U, 2U}) {
        EXPECT_THAT(run(4,
                        [&](const Ranks& ranks, CheckpointStore& store) {
                            const RankState state(ranks.number(), ranks.count(), number, kLarge,
                                                  true);
                            State own = state.state();
                            std::erase_if(own.tensors, [&](const StateTensor& tensor) {
                                return tensor.name == (ranks.number() == 0 ? "table" : "bias");
                            });
                            const CheckpointInfo info = store.save(own, {.step = number});
                            EXPECT_EQ(info.tensors, 12U);
                        }),
                    Each(""));
        const auto latest = reader().latest();
        ASSERT_TRUE(latest);
        Checkpoint checkpoint(engine_, FileSystem::local(), latest->path);
        EXPECT_EQ(RankState::compare(checkpoint, number, kLarge, true), "");
        EXPECT_EQ(RankState::compare_as_stock(*engine_, FileSystem::local(), latest->path, number,
                                              kLarge, true),
                  "");
        EXPECT_THAT(checkpoint.verify(), IsEmpty());
        for (const auto& entry : std::filesystem::directory_iterator(latest->path)) {
            EXPECT_FALSE(is_share_name(entry.path().filename().string())) << entry.path();
        }
    }
}

TEST_F(RankSaves, ReplicasAreEqualOrTheFirstIsTaken) {
    const auto save = [&](std::string_view other, Replicas replicas) {
        return run(3, [&](const Ranks& ranks, CheckpointStore& store) {
            const RankState state(ranks.number(), ranks.count(), 1, kLarge);
            State own = state.state();
            std::vector<std::byte> changed;
            for (StateTensor& tensor : own.tensors) {
                if (tensor.name == other && ranks.number() == 1) {
                    changed.assign(tensor.data.data, tensor.data.data + tensor.data.bytes);
                    changed.back() ^= std::byte{1};
                    tensor.data = changed;
                }
            }
            store.save(own, {.step = 1, .replicas = replicas});
        });
    };
    for (const std::string name : {"bias", "head"}) {
        EXPECT_THAT(save(name, Replicas::kEqual),
                    Each(AllOf(HasSubstr("tensor '" + name + "' is not the same on rank 0 of 3"),
                               HasSubstr("and rank 1 of 3"), HasSubstr("replicas=\"first\""))));
        EXPECT_THAT(leftovers(), IsEmpty());
    }
    EXPECT_FALSE(reader().latest());
    for (const std::string name : {"bias", "head", "table"}) {  // rank 1 would write the last one
        EXPECT_THAT(save(name, Replicas::kFirst), Each(""));
        Checkpoint checkpoint(engine_, FileSystem::local(), reader().latest()->path);
        EXPECT_EQ(RankState::compare(checkpoint, 1, kLarge), "");
    }
}

TEST_F(RankSaves, ATensorIsWholeOrInPartsOnAll) {
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1);
        State own = state.state();
        for (StateTensor& tensor : own.tensors) {
            if (tensor.name == "bias" && ranks.number() == 1) {
                tensor.global_shape = tensor.shape;
                tensor.global_offset = {0, 0};
            }
        }
        store.save(own, {.step = 1});
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("tensor 'bias' is F32 [1, 77] on rank 0"),
                                   HasSubstr("a part of F32 [1, 77] on rank 1"))));
}

}  // namespace
}  // namespace penstock::store
