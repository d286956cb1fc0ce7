// SPDX-License-Identifier: Apache-2.0
// A model in several folders: shards spread over them, copies of all and of some, and copies that
// are none. The folders of these tests are on one device, which is read as if it were several.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock::weights {
namespace {

using support::pattern;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

class WeightFoldersTest : public testing::Test {
protected:
    static constexpr const char* kIndex = "model.safetensors.index.json";

    WeightFoldersTest() {
        State state;
        for (int layer = 0; layer < 6; ++layer) {
            data_[fmt::format("layers.{}.up.weight", layer)] =
                pattern(600'000, static_cast<std::uint64_t>(layer) + 1);
        }
        for (const auto& [name, bytes] : data_) {
            state.tensors.push_back({name, "BF16", {bytes.size() / 2}, bytes});
        }
        for (const char* folder : {"a", "b"}) {
            std::filesystem::create_directory(folder_ / folder);
            save_file(engine_, folder_ / folder + "/" + kIndex, state, {.shard_bytes = 1'300'000});
        }
        shards_ = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                   "model-00003-of-00003.safetensors"};
    }
    [[nodiscard]] std::string path(const std::string& folder, const std::string& name) const {
        return folder_ / folder + "/" + name;
    }
    [[nodiscard]] WeightFolders inspected() const {
        return inspect_folders(engine_, {folder_ / "a", folder_ / "b"});
    }
    void expect_bytes(const WeightFolders& model) const {
        const std::vector<WeightUnit> units = find_weight_units(model.table);
        ASSERT_EQ(units.size(), 6U);
        WeightStream stream(engine_, model.table, units,
                            {.memory_bytes = 2'000'000, .copies = model.copies});
        for (int pass = 0; pass < 3; ++pass) {
            for (std::size_t unit = 0; unit < units.size(); ++unit) {
                const WeightView& view = stream.acquire(unit);
                const auto& expected = data_.at(units[unit].tensors[0]);
                EXPECT_TRUE(std::equal(view.tensors[0].span().begin(), view.tensors[0].span().end(),
                                       expected.begin(), expected.end()));
                stream.release(unit);
            }
        }
        stats_ = stream.stats();
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::map<std::string, std::vector<std::byte>> data_;
    std::vector<std::string> shards_;
    mutable WeightStreamStats stats_;
};

TEST_F(WeightFoldersTest, CopiesOfAllAreReadAtOnce) {
    const WeightFolders model = inspected();
    EXPECT_EQ(model.copies.size(), 3U);
    EXPECT_THAT(model.copies[1], ElementsAre(path("a", shards_[1]), path("b", shards_[1])));
    EXPECT_EQ(model.table.tensors.size(), 6U);
    expect_bytes(model);
    ASSERT_EQ(stats_.folders.size(), 2U);
    EXPECT_GT(stats_.folders[0].bytes_read, 0U);
    EXPECT_GT(stats_.folders[1].bytes_read, 0U);
    EXPECT_GT(stats_.folders[1].bytes_per_second, 0);
    EXPECT_EQ(stats_.folders[0].bytes_read + stats_.folders[1].bytes_read, stats_.bytes_read);
    EXPECT_GT(measure_weight_rate(*engine_, model, std::chrono::milliseconds(20)), 0);
}

TEST_F(WeightFoldersTest, SpreadShardsAndCopiesOfSome) {
    std::filesystem::remove(path("a", shards_[0]));
    std::filesystem::remove(path("b", shards_[1]));
    std::filesystem::remove(path("b", kIndex));
    const WeightFolders model = inspected();
    EXPECT_THAT(
        model.copies,
        ElementsAre(ElementsAre("", path("b", shards_[0])), ElementsAre(path("a", shards_[1]), ""),
                    ElementsAre(path("a", shards_[2]), path("b", shards_[2]))));
    expect_bytes(model);
}

TEST_F(WeightFoldersTest, OneFolderOrFileIsAsInspect) {
    const TensorTable table = inspect(engine_, path("a", kIndex));
    for (const std::string& name : {folder_ / "a", path("a", kIndex)}) {
        const WeightFolders model = inspect_folders(engine_, {name});
        EXPECT_EQ(model.table.files, table.files);
        EXPECT_EQ(model.table.tensors.size(), 6U);
        EXPECT_THAT(model.copies[0], ElementsAre(path("a", shards_[0])));
        expect_bytes(model);
        EXPECT_TRUE(stats_.folders.size() == 1 && stats_.folders[0].bytes_per_second == 0);
    }
}

TEST_F(WeightFoldersTest, CopiesThatDifferAreRefusedByName) {
    const std::string second = path("b", shards_[1]);
    std::ofstream(second, std::ios::app) << "more";
    Error error = error_of([&] { static_cast<void>(inspected()); });
    EXPECT_EQ(error.path(), second);
    EXPECT_THAT(error.what(), HasSubstr(path("a", shards_[1])));

    // The same size, another tensor.
    State state;
    state.tensors.push_back({"layers.2.up.weighs", "BF16", {300'000}, data_["layers.2.up.weight"]});
    state.tensors.push_back({"layers.3.up.weight", "BF16", {300'000}, data_["layers.3.up.weight"]});
    save_file(engine_, folder_ / "other.safetensors", state);
    State same;
    same.tensors.push_back({"layers.2.up.weight", "BF16", {300'000}, data_["layers.2.up.weight"]});
    same.tensors.push_back({"layers.3.up.weight", "BF16", {300'000}, data_["layers.3.up.weight"]});
    save_file(engine_, path("a", shards_[1]), same);
    std::filesystem::rename(folder_ / "other.safetensors", second);
    error = error_of([&] { static_cast<void>(inspected()); });
    EXPECT_EQ(error.path(), second);
    EXPECT_THAT(error.what(), HasSubstr("'layers.2.up.weight' is not the same in both headers"));
}

TEST_F(WeightFoldersTest, IndexesThatDifferAreRefusedByName) {
    std::string text = test::read_text(path("b", kIndex));
    text.replace(text.find("layers.5"), 8, "layers.9");
    test::write_text(path("b", kIndex), text);
    const Error error = error_of([&] { static_cast<void>(inspected()); });
    EXPECT_EQ(error.path(), path("b", kIndex));
    EXPECT_THAT(error.what(), HasSubstr(path("a", kIndex)));
}

TEST_F(WeightFoldersTest, WhatIsInNoFolderIsNamed) {
    std::filesystem::remove(path("a", shards_[2]));
    std::filesystem::remove(path("b", shards_[2]));
    EXPECT_THAT(error_of([&] { static_cast<void>(inspected()); }).what(),
                HasSubstr(fmt::format("'{}' is in none of the folders", shards_[2])));
    std::filesystem::create_directory(folder_ / "empty");
    EXPECT_THAT(
        error_of([&] { static_cast<void>(inspect_folders(engine_, {folder_ / "empty"})); }).what(),
        HasSubstr("this folder has no .safetensors file"));
    EXPECT_THAT(error_of([&] { static_cast<void>(inspect_folders(engine_, {})); }).what(),
                HasSubstr("the list of folders is empty"));
}

// A copy that is cut after the headers were read.
TEST_F(WeightFoldersTest, ACopyThatWasCutIsNamed) {
    const WeightFolders model = inspected();
    std::filesystem::resize_file(path("b", shards_[0]), 100'000);
    const Error error = error_of([&] { expect_bytes(model); });
    EXPECT_EQ(error.path(), path("b", shards_[0]));
}

}  // namespace
}  // namespace penstock::weights
