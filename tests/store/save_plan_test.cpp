// SPDX-License-Identifier: Apache-2.0
// What a save is going to do, by values alone: no disk, no engine.
#include "store/write/save_plan.hpp"

#include "store/manifest/manifest_check.hpp"
#include "store/manifest/manifest_draft.hpp"
#include "store/write/state_check.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::store {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::StartsWith;

constexpr std::uint64_t kTensorBytes = 4096;

class Planning : public ::testing::Test {
protected:
    explicit Planning(std::size_t tensors = 6) : memory_(kTensorBytes) {
        for (std::size_t i = 0; i < tensors; ++i) {
            state_.tensors.push_back(
                {fmt::format("t{}", i), "U8", {kTensorBytes}, memory_, {}, {}});
        }
    }

    // Two tensors a shard.
    [[nodiscard]] SavePlan plan(std::vector<bool> changed, std::size_t folders = 1,
                                std::uint64_t shard_bytes = 2 * kTensorBytes) const {
        SavePlan out{.state = state_,
                     .last = last_,
                     .generation = last_.manifest.generation + 1,
                     .step = 0,
                     .pinned = false,
                     .entries = check_state(state_),
                     .before = find_before(state_, last_.manifest),
                     .changed = std::move(changed),
                     .parts = {},
                     .note = {}};
        plan_parts(out, there_, shard_bytes, folders);
        return out;
    }
    [[nodiscard]] Manifest draft(const SavePlan& plan) {
        ManifestDraft made(plan, [this] { return ++random_; });
        return made.take();
    }
    // As if it were saved: what comes next may link all of it.
    void save(std::vector<bool> changed) {
        const Manifest manifest = draft(plan(std::move(changed)));
        last_.manifest = manifest;
        last_.path = "/ckpt/last";
        there_.assign(manifest.shards.size(), {.linkable = true, .folder = 0, .edited = {}});
    }
    static std::vector<std::string> files(const SavePlan& plan, bool written) {
        std::vector<std::string> out;
        for (const SavePart& part : plan.parts) {
            if (part.is_written() == written) {
                out.push_back(part.file);
            }
        }
        return out;
    }

    std::vector<std::byte> memory_;
    State state_;
    LastCheckpoint last_;
    std::vector<ShardThere> there_;
    std::uint64_t random_ = 0;
};

const std::vector<bool> kAll(6, true);
const std::vector<bool> kNone(6, false);

TEST_F(Planning, TheFirstSaveWritesAllOfIt) {
    const SavePlan first = plan(kAll);
    EXPECT_THAT(files(first, true),
                ElementsAre("shard-00001.safetensors", "shard-00002.safetensors",
                            "shard-00003.safetensors"));
    EXPECT_THAT(first.before, Each(nullptr));
    EXPECT_EQ(first.note, "");
    const Manifest manifest = draft(first);
    EXPECT_EQ(check_manifest(manifest), "");
    EXPECT_EQ(manifest.written_bytes, 6 * kTensorBytes);
    EXPECT_EQ(manifest.generation, 1U);
}

TEST_F(Planning, WhatDidNotChangeIsLinkedUnderItsName) {
    save(kAll);
    const SavePlan same = plan(kNone);
    EXPECT_EQ(files(same, true).size(), 0U);
    EXPECT_EQ(files(same, false).size(), 3U);
    // Both tensors of the second shard; it is written under a name that nothing has.
    const SavePlan next = plan({false, false, true, true, false, false});
    EXPECT_THAT(files(next, false),
                ElementsAre("shard-00001.safetensors", "shard-00003.safetensors"));
    EXPECT_THAT(files(next, true), ElementsAre("shard-00002.safetensors"));
    const Manifest manifest = draft(next);
    EXPECT_EQ(check_manifest(manifest), "");
    EXPECT_EQ(manifest.written_bytes, 2 * kTensorBytes);
    EXPECT_EQ(manifest.tensors[0].slices[0].changed, 1U);
    EXPECT_EQ(manifest.tensors[2].slices[0].changed, 2U);
}

TEST_F(Planning, AShardThatAnotherProgramWroteToIsWrittenAndSaidSo) {
    save(kAll);
    there_[1] = {.linkable = false, .folder = 0, .edited = "/ckpt/last/shard-00002.safetensors"};
    const SavePlan next = plan(kNone);
    EXPECT_EQ(files(next, false).size(), 2U);
    EXPECT_THAT(next.note, HasSubstr("wrote to /ckpt/last/shard-00002.safetensors since"));
    // The changed tensor is written anyway, so there is no note.
    EXPECT_EQ(plan(kAll).note, "");
}

TEST_F(Planning, APartThatCannotBeLinkedIsLaidOutLikeAnyOther) {
    save(kAll);
    SavePlan next = plan(kNone);
    write_instead(next, next.parts[0]);
    EXPECT_THAT(files(next, true), ElementsAre("shard-00001.safetensors"));
    ASSERT_TRUE(next.parts[0].layout);
    EXPECT_EQ(next.parts[0].layout->tensors().size(), 2U);
    EXPECT_EQ(check_manifest(draft(next)), "");
}

TEST_F(Planning, ATensorOfAnotherTypeOrPlaceIsNew) {
    save(kAll);
    state_.tensors[0].dtype = "I8";
    state_.tensors[1].shape = {kTensorBytes / 2, 2};
    state_.tensors[2].name = "other";
    const std::vector<const Slice*> before = find_before(state_, last_.manifest);
    EXPECT_EQ(before[0], nullptr);
    EXPECT_EQ(before[1], nullptr);
    EXPECT_EQ(before[2], nullptr);
    EXPECT_NE(before[3], nullptr);
}

// The text of the header, without the numbers at its beginning and the spaces at its end.
std::string header_of(const SavePart& part) {
    const std::string_view text = part.layout->file().literals();
    return std::string(text.substr(8, text.find_last_not_of(' ') - 7));
}

TEST_F(Planning, OnlyASaveOfSlicesSaysWhereTensorsBegin) {
    const SavePlan whole = plan(kAll, 1, 1024 * kTensorBytes);
    EXPECT_THAT(header_of(whole.parts[0]), StartsWith(R"({"__metadata__":{"format":"pt"},"t0":)"));
    // Slices of "t0", and a tensor whose name looks like that of one, and is hard to write.
    state_.tensors.resize(4);
    state_.tensors[1].name = "t0";
    for (std::uint64_t i = 0; i < 2; ++i) {
        state_.tensors[i].shape = {4, kTensorBytes / 4};
        state_.tensors[i].global_shape = {8, kTensorBytes / 4};
        state_.tensors[i].global_offset = {4 * i, 0};
    }
    state_.tensors[2].name = "t0@4,0";
    state_.tensors[3].name = "\"\\\n\xc3\xa4";
    const SavePlan sliced = plan({true, true, true, true}, 1, 1024 * kTensorBytes);
    EXPECT_THAT(files(sliced, true),
                ElementsAre("shard-00001.slices.safetensors", "shard-00002.slices.safetensors"));
    EXPECT_THAT(sliced.parts[0].tensors, ElementsAre(0, 2, 3));
    const auto places = [&](std::size_t part) {
        const auto json = nlohmann::json::parse(header_of(sliced.parts[part]));
        EXPECT_EQ(json["__metadata__"]["format"], "pt");
        return nlohmann::json::parse(json["__metadata__"]["DCP_SHARDING_INFO"].get<std::string>());
    };
    EXPECT_EQ(places(0), nlohmann::json::parse(R"({"t0":{"saved_offsets":[0,0]},
        "t0@4,0":{"saved_offsets":[0]},"\"\\\n\u00e4":{"saved_offsets":[0]}})"));
    EXPECT_EQ(places(1), nlohmann::json::parse(R"({"t0":{"saved_offsets":[4,0]}})"));
}

TEST_F(Planning, AShardWithSlicesUnderOtherNamesIsNotLinked) {
    state_.tensors.resize(2);
    state_.tensors[0].global_shape = {2 * kTensorBytes};
    state_.tensors[0].global_offset = {kTensorBytes};
    save({true, true});
    EXPECT_EQ(last_.manifest.shards[0].file, "shard-00001.slices.safetensors");
    EXPECT_EQ(files(plan({false, false}), true).size(), 0U);
    last_.manifest.shards[0].file = "shard-00001.safetensors";  // as earlier saves named it
    const SavePlan next = plan({true, false});
    EXPECT_THAT(next.before, ElementsAre(nullptr, Ne(nullptr)));
    EXPECT_THAT(files(next, true),
                ElementsAre("shard-00001.slices.safetensors", "shard-00002.safetensors"));
    EXPECT_EQ(check_manifest(draft(next)), "");
}

TEST_F(Planning, SeveralFoldersGetAFewShardsEach) {
    constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
    memory_.resize(4 * kMib);
    for (StateTensor& tensor : state_.tensors) {
        tensor.shape = {memory_.size()};
        tensor.data = memory_;
    }
    EXPECT_EQ(plan(kAll, 1, 1024 * kMib).parts.size(), 1U);
    EXPECT_EQ(plan(kAll, 2, 1024 * kMib).parts.size(), 6U);
}

}  // namespace
}  // namespace penstock::store
