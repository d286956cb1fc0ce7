// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/mapped_source.hpp"

#include "store/read/stored_source.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

namespace penstock::cli {
namespace {

using testing::HasSubstr;

class MappedSourceTest : public testing::Test {
protected:
    void SetUp() override {
        State state;
        state.tensors.push_back({"a", "U8", {values_.size()}, std::as_bytes(std::span(values_))});
        state.tensors.push_back({"none", "F32", {0, 3}, {}});
        CheckpointStore store(engine_, FileSystem::local(), {folder_ / "store"});
        shard_ = store.save(state).path + "/shard-00001.safetensors";
        source_ = store::open_source(engine_, FileSystem::local(), folder_ / "store");
    }

    static std::string told(const MappedSource& mapped) {
        try {
            mapped.check();
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kDamaged);
            return error.what();
        }
        return {};
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::vector<std::uint8_t> values_ = std::vector<std::uint8_t>(5'000'000, 7);
    std::string shard_;
    std::unique_ptr<state::Source> source_;
};

TEST_F(MappedSourceTest, HasTheBytesOfEachTensor) {
    const MappedSource mapped(*source_);
    ASSERT_EQ(mapped.tensors().size(), 2U);
    EXPECT_TRUE(std::ranges::equal(mapped.tensors()[0], std::as_bytes(std::span(values_))));
    EXPECT_TRUE(mapped.tensors()[1].empty());
    EXPECT_EQ(told(mapped), "");
}

TEST_F(MappedSourceTest, ATensorInSlicesIsRefused) {
    const auto bytes = std::as_bytes(std::span(values_)).first(4);
    State state;
    state.tensors.push_back({"g", "U8", {4}, bytes, {8}, {0}});
    state.tensors.push_back({"g", "U8", {4}, bytes, {8}, {4}});
    CheckpointStore(engine_, FileSystem::local(), {folder_ / "sliced"}).save(state);
    const auto sliced = store::open_source(engine_, FileSystem::local(), folder_ / "sliced");
    EXPECT_THROW(MappedSource{*sliced}, Error);
}

TEST_F(MappedSourceTest, AFileThatShrinksIsAnErrorAndNoEndOfTheProgram) {
    const MappedSource mapped(*source_);
    std::filesystem::resize_file(shard_, 4096);
    EXPECT_EQ(mapped.tensors()[0][3'000'000], std::byte{0});
    EXPECT_EQ(mapped.tensors()[0].back(), std::byte{0});
    EXPECT_THAT(told(mapped), HasSubstr(shard_));
}

TEST_F(MappedSourceTest, WhereTheKernelLooksItIsABadAddress) {
    const MappedSource mapped(*source_);
    const Error full(ErrorCode::kSystem, ENOSPC, "write", "x", 0, "full");
    const Error fault(ErrorCode::kSystem, EFAULT, "write", "x", 0, "bad address");
    std::filesystem::resize_file(shard_, 4096);
    EXPECT_NO_THROW(mapped.explain(full));
    EXPECT_THROW(
        {
            try {
                mapped.explain(fault);
            } catch (const Error& error) {
                EXPECT_EQ(error.path(), shard_);
                throw;
            }
        },
        Error);
}

TEST_F(MappedSourceTest, AFileThatHasShrunkBeforeIsNamed) {
    std::filesystem::resize_file(shard_, 4096);
    try {
        const MappedSource mapped(*source_);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kDamaged);
        EXPECT_THAT(error.what(), HasSubstr(shard_));
    }
}

using MappedSourceDeathTest = MappedSourceTest;

TEST_F(MappedSourceDeathTest, AnotherBusErrorEndsTheProgram) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const MappedSource mapped(*source_);
    EXPECT_EXIT(
        {
            // The child makes a folder of its own, which no destructor removes.
            std::filesystem::remove_all(folder_.path());
            static_cast<void>(::raise(SIGBUS));
        },
        testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace penstock::cli
