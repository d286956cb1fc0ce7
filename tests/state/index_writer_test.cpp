// SPDX-License-Identifier: Apache-2.0
// What is in which shard, what the files are called, and what a save of an index refuses. Crashes
// of it: crash_index_test.cpp.
#include "state/index/index_writer.hpp"

#include "format/shard_index.hpp"
#include "state/index/index_folder.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace penstock::state {
namespace {

using Plan = std::vector<std::vector<std::size_t>>;
using Names = std::vector<std::string>;

TEST(ShardPlan, TensorsComeInOrderAndNoShardIsLargerThanItMayBe) {
    const std::vector<std::uint64_t> sizes{4, 4, 0, 1, 20, 0, 3, 7, 1};
    EXPECT_EQ(plan_shards(sizes, 8), (Plan{{0, 1, 2}, {3}, {4, 5}, {6}, {7, 8}}));
    EXPECT_EQ(plan_shards(sizes, UINT64_MAX), (Plan{{0, 1, 2, 3, 4, 5, 6, 7, 8}}));
    EXPECT_EQ(plan_shards({}, 8), Plan{});
    EXPECT_EQ(plan_shards(sizes, 1).size(), 7U);
}

TEST(ShardNames, AreKnownByTheirStem) {
    EXPECT_EQ(format::shard_name("m", "", 2, 10), "m-00002-of-00010.safetensors");
    EXPECT_EQ(format::shard_name("m", "0123abcd", 2, 10), "m.0123abcd-00002-of-00010.safetensors");
    for (const char* name : {"m-00002-of-00010.safetensors", "m-123456-of-123456.safetensors",
                             "m.0123abcd-00002-of-00010.safetensors"}) {
        EXPECT_TRUE(format::is_shard_name(name, "m")) << name;
        EXPECT_FALSE(format::is_shard_name(name, "mm")) << name;
        EXPECT_FALSE(format::is_shard_name(name, "")) << name;
    }
    for (const char* name :
         {"m-0002-of-00010.safetensors", "m-00002-of-00010.safetensors.x", "m.safetensors",
          "m.0123abc-00002-of-00010.safetensors", "m.0123abcg-00002-of-00010.safetensors", "",
          "m.model-00002-of-00010.safetensors", "m-00002-of-00010", "m-00002_of-00010.safetensors",
          "m.-00002-of-00010.safetensors", "n-00002-of-00010.safetensors"}) {
        EXPECT_FALSE(format::is_shard_name(name, "m")) << name;
    }
}

class IndexWriter : public ::testing::Test {
protected:
    // Tensors of 4000 bytes, three to a shard.
    void save(std::uint8_t value, std::size_t count = 6, const char* index = kIndex) {
        const std::vector<std::byte> data(4000, std::byte{value});
        NamedTensors tensors;
        for (std::size_t i = 0; i < count; ++i) {
            tensors.tensors.push_back({fmt::format("{}", i), type_, {1000}, 0, 0});
            tensors.payloads.emplace_back(data);
        }
        save_index(*engine_, FileSystem::local(), folder_ / index, std::move(tensors),
                   {.shard_bytes = 12'000, .progress = progress_, .note = &note_});
    }
    [[nodiscard]] Names names() const { return FileSystem::local().list(folder_.path()); }
    void put(const std::string& name, const std::string& text = "") const {
        std::ofstream(folder_ / name) << text;
    }
    Error error_of(std::uint8_t value, const char* index = kIndex) {
        try {
            save(value, 6, index);
        } catch (const Error& error) {
            return error;
        }
        throw std::logic_error("it was saved");
    }

    static constexpr const char* kIndex = "m.safetensors.index.json";
    const Names first_{"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors", kIndex};
    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    tensor::ElementType type_ = tensor::ElementType::kF32;
    Progress progress_;
    std::string note_;
};

TEST_F(IndexWriter, OldShardsGoWithTheNextSave) {
    save(1);
    EXPECT_EQ(names(), first_);
    save(2);
    EXPECT_EQ(names().size(), 3U);
    EXPECT_NE(names(), first_);
    save(3, 3);
    EXPECT_EQ(names(), (Names{"m-00001-of-00001.safetensors", kIndex}));
}

// As releases before this one left it: the same names, and a record that no process locks.
TEST_F(IndexWriter, WhatADeadSaveOfAnOlderReleaseLeftGoes) {
    save(1);
    put("m-00001-of-00003.safetensors");
    put("m.0123abcd-00001-of-00003.safetensors");
    put(".m-00002-of-00003.safetensors.0123456789abcdef.tmp");
    put("n-00001-of-00003.safetensors");
    put(std::string(".") + kIndex + ".0123456789abcdef.tmp",
        R"({"weight_map": {"0": "m-00001-of-00003.safetensors",
            "1": "m-00002-of-00003.safetensors", "2": "m.0123abcd-00001-of-00003.safetensors",
            "3": "n-00001-of-00003.safetensors", "4": "m-00001-of-00002.safetensors"}})");
    save(2);
    Names left = names();
    EXPECT_EQ(std::count(left.begin(), left.end(), "n-00001-of-00003.safetensors"), 1);
    EXPECT_EQ(left.size(), 4U);
}

TEST_F(IndexWriter, LinksAndFoldersInPlaceOfShardsAreNotFollowed) {
    put("decoy", "decoy");
    put(kIndex, R"({"weight_map": {"0": "a.safetensors", "1": "b.safetensors", "2": "notes"}})");
    put("notes");
    FileSystem::local().symbolic_link(folder_ / "decoy", folder_ / "a.safetensors");
    FileSystem::local().make_folder(folder_ / "b.safetensors");
    save(1);
    EXPECT_EQ(names(), (Names{"a.safetensors", "b.safetensors", "decoy", first_[0], first_[1],
                              kIndex, "notes"}));
    EXPECT_EQ(FileSystem::local().status(folder_ / "decoy").bytes, 5U);
}

// A save removes the shards that a save of this index wrote, as they are; no others that it names.
TEST_F(IndexWriter, ShardsOfAnotherProgramStay) {
    const Names theirs{"base.safetensors", "m-00001-of-00002.safetensors",
                       "m.0123abcd-00002-of-00002.safetensors"};
    for (const std::string& name : theirs) {
        put(name, "theirs");
    }
    const std::string rows = R"("weight_map": {"0": "base.safetensors",
        "1": "m-00001-of-00002.safetensors", "2": "m.0123abcd-00002-of-00002.safetensors"}})";
    for (const std::string& metadata :
         {std::string(R"("metadata": {}, )"),
          std::string(R"("metadata": {"penstock.index": "0123456789abcdef"}, )"),
          std::string(R"("metadata": {"penstock.index": 7}, )")}) {
        put(kIndex, "{" + metadata + rows);
        save(1);
        EXPECT_EQ(note_.find("'" + (folder_ / theirs.front()) + "' and 2 more shards of the "), 0U)
            << note_;
        save(2);  // removes those of its own
        EXPECT_EQ(note_, "");
        const Names left = names();
        EXPECT_EQ(left.size(), theirs.size() + 3);
        for (const std::string& name : theirs) {
            EXPECT_EQ(std::count(left.begin(), left.end(), name), 1) << name;
            EXPECT_EQ(FileSystem::local().status(folder_ / name).bytes, 6U);
        }
        for (const std::string& name : left) {
            if (std::count(theirs.begin(), theirs.end(), name) == 0) {
                FileSystem::local().remove(folder_ / name);
            }
        }
    }
}

TEST_F(IndexWriter, AShardThatAnotherProgramReplacedStays) {
    save(1);
    put(first_[0], "theirs");
    save(2);
    const Names left = names();
    EXPECT_EQ(std::count(left.begin(), left.end(), first_[0]), 1);
    EXPECT_EQ(FileSystem::local().status(folder_ / first_[0]).bytes, 6U);
    FileSystem::local().rename(folder_ / kIndex, folder_ / "n.safetensors.index.json");
    save(3, 6, "n.safetensors.index.json");  // its mark is of another name
    EXPECT_EQ(names().size(), left.size() + 2);
}

// It may name them; when it is gone, they go.
TEST_F(IndexWriter, AnIndexThatCannotBeReadKeepsThem) {
    save(1);
    put("other.safetensors.index.json", R"({"weight_map": 5})");
    put("unrelated.index.json", "no index");
    save(2);
    const Names left = names();
    for (const std::string& name : first_) {
        EXPECT_EQ(std::count(left.begin(), left.end(), name), 1) << name;
    }
    FileSystem::local().remove(folder_ / "other.safetensors.index.json");
    save(3);
    EXPECT_EQ(names().size(), 4U);
}

TEST_F(IndexWriter, AFolderOfACheckpointIsRefused) {
    save(1);
    put("manifest.json", R"({"penstock_checkpoint":1,"generation")");
    const Error error = error_of(2);
    EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("in another folder"), std::string::npos);
    EXPECT_EQ(names().size(), 4U);
    put("manifest.json", R"({"name":"of a web app"})");
    save(2);
}

TEST_F(IndexWriter, WhatIsStoppedLeavesTheOldOne) {
    save(1);
    std::uint64_t last = 0;
    progress_ = [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_GE(done, last);
        EXPECT_LE(done, total);
        last = done;
        return done < total;
    };
    EXPECT_EQ(error_of(2).reason(), ErrorCode::kCancelled);
    EXPECT_GE(last, 24'000U);
    EXPECT_EQ(names(), first_);
}

TEST_F(IndexWriter, WrongNamesAndTensorsAreErrorsBeforeAnythingIsWritten) {
    EXPECT_NE(std::string(error_of(1, "\xff.safetensors.index.json").what()).find("UTF-8"),
              std::string::npos);
    type_ = tensor::ElementType::kC128;
    EXPECT_EQ(error_of(1).reason(), ErrorCode::kInvalidArgument);
    type_ = tensor::ElementType::kF32;
    EXPECT_EQ(error_of(1, "no/m.safetensors.index.json").system_errno(), ENOENT);
    EXPECT_EQ(names(), Names{});
}

TEST(IndexRoom, ForAllShardsIsAskedForFirst) {
    test::CrashRig rig(1, {.capacity_bytes = 40'000});
    rig.files().make_folder("/f");
    const std::vector<std::byte> data(20'000);
    NamedTensors tensors;
    for (const char* name : {"a", "b", "c"}) {
        tensors.tensors.push_back({name, tensor::ElementType::kU8, {data.size()}, 0, 0});
        tensors.payloads.emplace_back(data);
    }
    try {
        save_index(*rig.engine(), rig.files(), "/f/m.safetensors.index.json", std::move(tensors),
                   {.shard_bytes = 1, .progress = [](std::uint64_t, std::uint64_t) {
                        ADD_FAILURE() << "something was written";
                        return true;
                    }});
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.system_errno(), ENOSPC);
        const std::string text = error.what();
        EXPECT_NE(text.find("are missing; nothing was written"), std::string::npos) << text;
    }
    EXPECT_EQ(rig.files().list("/f"), Names{});
}

}  // namespace
}  // namespace penstock::state
