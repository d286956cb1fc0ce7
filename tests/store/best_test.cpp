// SPDX-License-Identifier: Apache-2.0
// The metadata of checkpoints, the best of them by a number in it, and those that are kept by step.
#include "store/keep/store_folder.hpp"
#include "store/store_support.hpp"
#include "support.hpp"
#include "support/crash_harness.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::store {
namespace {

using test::error_of;
using test::Tensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const StoreOptions kSmall{.keep = 2, .shard_bytes = 4096, .lock_wait_ms = 0};

// On a fake disk, all on the caller's thread.
class StoreBest : public ::testing::Test {
protected:
    [[nodiscard]] CheckpointStore store(const StoreOptions& options = kSmall) {
        return {rig_.engine(), rig_.files(), {"/store"}, options};
    }

    test::CrashRig rig_;
    Tensors old_{{600, 3, 900, 0, 1500}, 1};
};

TEST_F(StoreBest, TheBestAreFoundAndKept) {
    StoreOptions options = kSmall;
    options.keep = 1;
    options.keep_best = 2;
    options.read_back = false;  // or one more may stay
    options.metric = {.name = "accuracy", .greater_is_better = true};
    CheckpointStore store = this->store(options);
    const std::vector<MetadataValue> values{0.5, 0.9,  std::monostate(), 0.7,         0.9, 1,
                                            "2", true, HUGE_VAL,         std::nan("")};
    for (std::size_t i = 0; i < values.size(); ++i) {
        old_.change(0, i);
        store.save(old_.state(), {.step = i, .metadata = {{"accuracy", values[i]}}});
    }
    std::vector<std::uint64_t> left;
    for (const CheckpointInfo& info : store.list()) {
        left.push_back(info.step);
    }
    EXPECT_THAT(left, ElementsAre(5, 8, 9));
    const auto best = store.best(options.metric, 5);
    ASSERT_EQ(best.size(), 2U);
    EXPECT_EQ(best[0].step, 8U);
    EXPECT_EQ(best[1].step, 5U);
    EXPECT_EQ(store.best({.name = "accuracy"}).front().step, 5U);
    EXPECT_THAT(store.best({.name = "loss"}), IsEmpty());
    const Error mistyped = error_of([&] { (void)store.best({.name = "acuracy"}); });
    EXPECT_EQ(mistyped.reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(mistyped.what(), HasSubstr("did you mean 'accuracy'?"));
    EXPECT_THAT(store.best({.name = "run"}), IsEmpty());
    options.metric.name = "";
    EXPECT_THAT(error_of([&] { (void)this->store(options); }).what(), HasSubstr("keep_best needs"));
}

// Steps by 100, and 300 is kept: 100 to 1,100, and back to 600 again.
TEST_F(StoreBest, StepsThatAreMultiplesAreKept) {
    StoreOptions options = kSmall;
    options.keep = 1;
    options.keep_every_steps = 300;
    options.read_back = false;  // or one more may stay
    CheckpointStore store = this->store(options);
    for (const std::uint64_t step : {100, 200, 300, 400, 500, 600, 700, 600, 700, 800, 900, 1000}) {
        old_.change(0, step);
        store.save(old_.state(), {.step = step});
    }
    const auto left = [&] {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
        for (const CheckpointInfo& info : store.list()) {
            out.emplace_back(info.generation, info.step);
        }
        return out;
    };
    using Left = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
    EXPECT_EQ(left(), (Left{{3, 300}, {8, 600}, {11, 900}, {12, 1000}}));
    // The one before stays where the newest of a step is not whole.
    rig_.files().remove(join(store.list()[1].path, kManifestName));
    for (const std::uint64_t step : {600, 700}) {
        store.save(old_.state(), {.step = step});
    }
    // That of 600 which is not whole stays as it is: it may be whole tomorrow.
    EXPECT_EQ(left(), (Left{{3, 300}, {8, 600}, {11, 900}, {13, 600}, {14, 700}}));
}

// A checkpoint that cannot be used does not count, and is not removed: it may come back.
TEST_F(StoreBest, ABestThatIsNotWholeIsNotCounted) {
    StoreOptions options = kSmall;
    options.keep_best = 1;
    options.metric.name = "loss";
    for (std::uint64_t i = 1; i <= 3; ++i) {
        old_.change(0, i);
        store(options).save(old_.state(),
                            {.step = i, .metadata = {{"loss", static_cast<double>(i)}}});
    }
    rig_.files().remove(join(store().open(1).info().path, "shard-00001.safetensors"));
    EXPECT_EQ(store().best(options.metric).front().step, 2U);
    for (std::uint64_t i = 4; i <= 6; ++i) {
        old_.change(0, i);
        store(options).save(old_.state(),
                            {.step = i, .metadata = {{"loss", static_cast<double>(i)}}});
    }
    std::vector<std::uint64_t> left;
    for (const CheckpointInfo& info : store().list()) {
        left.push_back(info.step);
    }
    EXPECT_THAT(left, ElementsAre(1, 2, 5, 6));
}

TEST_F(StoreBest, MetadataIsBounded) {
    const auto refused = [&](const CheckpointMetadata& metadata) {
        State state = old_.state();
        state.metadata = {{"run", "first"}};
        const Error error = error_of([&] { store().save(state, {.metadata = metadata}); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        EXPECT_EQ(error_of([&] { (void)store().save_async(state, {.metadata = metadata}); }).what(),
                  std::string(error.what()));
        return std::string(error.what());
    };
    EXPECT_THAT(refused({{"run", 1}}), HasSubstr("'run' comes twice"));
    EXPECT_THAT(refused({{"a", "\xff"}}), HasSubstr("not UTF-8"));
    EXPECT_THAT(refused({{"a", std::string(1 << 20, 'x')}}), HasSubstr("1048585 bytes"));
    EXPECT_FALSE(store().latest());
}

}  // namespace
}  // namespace penstock::store
