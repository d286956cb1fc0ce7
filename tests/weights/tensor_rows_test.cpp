// SPDX-License-Identifier: Apache-2.0
// Rows of tables that are one tensor or several, in one file or several.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>
#include <penstock/tensor_table.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace penstock::weights {
namespace {

using support::pattern;
using test::error_of;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

class TensorRowsTest : public testing::Test {
protected:
    void SetUp() override {
        add("part.0", "F32", {300, 4, 6}, 4);
        add("part.1", "F32", {1, 4, 6}, 4);
        add("between", "F32", {77}, 4);
        add("part.2", "F32", {500, 4, 6}, 4);
        add("other", "F16", {9, 4, 6}, 2);
        add("empty", "F32", {0, 4, 6}, 4);
        add("number", "F32", {}, 4);
        save_file(engine_, folder_ / "model.safetensors.index.json", state_,
                  {.shard_bytes = 40'000});
        table_ = inspect(engine_, folder_ / "model.safetensors.index.json");
    }
    void add(const std::string& name, const std::string& dtype, std::vector<std::uint64_t> shape,
             std::uint64_t element) {
        for (const std::uint64_t length : shape) {
            element *= length;
        }
        data_.push_back(pattern(element, data_.size() + 1));
        state_.tensors.push_back({name, dtype, std::move(shape), data_.back()});
    }
    [[nodiscard]] TensorRows rows(const std::vector<std::string>& names) const {
        return {engine_, table_, names};
    }
    std::string refusal(const std::vector<std::string>& names) const {
        return error_of([&] { static_cast<void>(rows(names)); }).what();
    }

    static constexpr std::uint64_t kRow = 96;
    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    State state_;
    std::vector<Bytes> data_ = [] {
        std::vector<Bytes> out;
        out.reserve(16);  // the state has their addresses
        return out;
    }();
    TensorTable table_;
};

TEST_F(TensorRowsTest, GathersFromAllParts) {
    const TensorRows table = rows({"part.2", "empty", "part.0", "part.1"});
    EXPECT_EQ(table.rows(), 801U);
    EXPECT_EQ(table.row_bytes(), kRow);
    EXPECT_EQ(table.dtype(), "F32");
    EXPECT_THAT(table.row_shape(), testing::ElementsAre(4, 6));
    Bytes whole = data_[3];
    whole.insert(whole.end(), data_[0].begin(), data_[0].end());
    whole.insert(whole.end(), data_[1].begin(), data_[1].end());
    std::mt19937_64 random(1);
    for (const std::size_t count : {0U, 1U, 10U, 2000U}) {
        std::vector<std::uint64_t> ids(count);
        std::generate(ids.begin(), ids.end(), [&] { return random() % table.rows(); });
        Bytes out(count * kRow);
        EXPECT_EQ(table.gather(ids, out), count * kRow);
        Bytes later(count * kRow);
        table.gather_async(ids, later).wait();
        for (std::size_t i = 0; i < count; ++i) {
            ASSERT_TRUE(std::equal(&out[i * kRow], &out[i * kRow] + kRow, &whole[ids[i] * kRow]));
        }
        EXPECT_EQ(out, later);
    }
}

TEST_F(TensorRowsTest, WhatDoesNotFitIsRefusedByName) {
    EXPECT_THAT(refusal({"part.0", "part.3"}), HasSubstr("'part.3' is in none of the"));
    EXPECT_THAT(refusal({"part.0", "other"}), HasSubstr("'other' is F16 with rows of shape"));
    EXPECT_THAT(refusal({"between", "part.0"}), HasSubstr("parts of one table"));
    EXPECT_THAT(refusal({"number"}), HasSubstr("has no dimensions"));
    EXPECT_THAT(refusal({}), HasSubstr("expected 1 tensor or more"));
    TensorRows table = rows({"part.0"});
    Bytes out(kRow);
    const std::vector<std::uint64_t> beyond{300};
    EXPECT_THAT(error_of([&] { table.gather(beyond, out); }).what(),
                HasSubstr("ids[0]: 300 is no row; there are 300"));
    out.resize(kRow - 1);
    const std::vector<std::uint64_t> first{0};
    EXPECT_THAT(error_of([&] { table.gather(first, out); }).what(),
                HasSubstr("expected 1 rows of 96 bytes"));
    table.close();
    table.close();
    out.resize(kRow);
    EXPECT_EQ(error_of([&] { table.gather(first, out); }).reason(), ErrorCode::kClosed);
}

}  // namespace
}  // namespace penstock::weights
