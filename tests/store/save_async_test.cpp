// SPDX-License-Identifier: Apache-2.0
// CheckpointStore::save_async(), as users of C++ have it.
#include "store_support.hpp"
#include "support/temp_folder.hpp"
#include "support/text_files.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::expect_holds;
using test::Tensors;
using ::testing::Each;
using ::testing::HasSubstr;

class SaveAsync : public ::testing::Test {
protected:
    [[nodiscard]] CheckpointStore store(const StoreOptions& options = {}) const {
        return {engine_, files_, {folder_ / "c"}, options};
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    FileSystem files_ = FileSystem::local();
    Tensors tensors_{{1000, 50'000}, 1};
};

// Holds a save back until it is opened.
struct Gate {
    std::shared_ptr<std::atomic<bool>> open = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<std::atomic<bool>> reached = std::make_shared<std::atomic<bool>>(false);
    [[nodiscard]] Progress progress() const {
        return [is_open = open, is_reached = reached](std::uint64_t, std::uint64_t) {
            *is_reached = true;
            while (!*is_open) {
                std::this_thread::sleep_for(1ms);
            }
            return true;
        };
    }
};

TEST_F(SaveAsync, TheTensorsMayChangeWhenItReturns) {
    const Tensors before = tensors_;
    const Gate gate;
    {
        CheckpointStore own = store();
        PendingSave pending =
            own.save_async(tensors_.state(), {.step = 3, .progress = gate.progress()});
        EXPECT_TRUE(pending.staged());
        EXPECT_FALSE(pending.wait(1ms));
        tensors_.change(1, 9);
        *gate.open = true;
        const CheckpointInfo info = pending.result();
        EXPECT_EQ(info.step, 3U);
        EXPECT_TRUE(pending.done());
        EXPECT_EQ(pending.done_bytes(), pending.total_bytes());
        EXPECT_GT(pending.total_bytes(), 0U);
        expect_holds(*engine_, files_, info.path, before);
    }
    EXPECT_EQ(store().latest()->generation, 1U);
}

TEST_F(SaveAsync, SavesComeInTheirOrderAndTheEndOfTheStoreFinishesThem) {
    {
        CheckpointStore own = store();
        for (std::uint64_t step = 1; step <= 3; ++step) {
            own.save_async(tensors_.state(), {.step = step});
        }
        EXPECT_EQ(own.save(tensors_.state(), {.step = 4}).generation, 4U);
        own.save_async(tensors_.state(), {.step = 5});
    }
    const std::vector<CheckpointInfo> all = store().list();
    ASSERT_EQ(all.size(), 5U);
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].step, i + 1);
        EXPECT_EQ(all[i].problem, "");
    }
}

TEST_F(SaveAsync, WithoutACopyTheTensorsAreNeededUntilItIsDone) {
    CheckpointStore own = store();
    const Gate gate;
    auto owner = std::make_shared<int>(1);
    const std::weak_ptr<int> seen = owner;
    PendingSave pending =
        own.save_async(tensors_.state(), {.progress = gate.progress()},
                       {.copy = false, .unchanging = {}, .keeps = std::move(owner)});
    EXPECT_FALSE(pending.staged());
    EXPECT_FALSE(pending.wait_staged(1ms));
    EXPECT_FALSE(seen.expired());
    *gate.open = true;
    expect_holds(*engine_, files_, pending.result().path, tensors_);
    EXPECT_TRUE(pending.staged());
    own.save(tensors_.state());
    EXPECT_TRUE(seen.expired());
}

TEST_F(SaveAsync, AStateThatDoesNotFitIntoTheBudgetIsWaitedFor) {
    CheckpointStore own = store({.host_memory_bytes = 1});
    const PendingSave pending = own.save_async(tensors_.state());
    EXPECT_TRUE(pending.done());
    EXPECT_THAT(pending.note(), HasSubstr("does not fit"));
    expect_holds(*engine_, files_, pending.result().path, tensors_);
}

TEST_F(SaveAsync, AFailureIsThrownByResultOrByTheNextSave) {
    CheckpointStore own = store();
    own.save(tensors_.state());
    std::filesystem::rename(folder_ / "c", folder_ / "away");
    const PendingSave asked = own.save_async(tensors_.state());
    EXPECT_EQ(error_of([&] { (void)asked.result(); }).system_errno(), ENOENT);
    EXPECT_TRUE(own.save_async(tensors_.state(), {.step = 7}).wait());
    std::filesystem::rename(folder_ / "away", folder_ / "c");
    const Error error = error_of([&] { own.save_async(tensors_.state(), {.step = 8}); });
    EXPECT_THAT(error.what(), HasSubstr("save of step 7 failed, and step 8 was not begun"));
    EXPECT_EQ(own.save_async(tensors_.state()).result().generation, 2U);
}

TEST_F(SaveAsync, AFailureIsThrownByWait) {
    CheckpointStore one = store();
    EXPECT_TRUE(one.wait());
    CheckpointStore other = store();
    other.save(tensors_.state());  // has the lock, so the save of the first store fails
    one.save_async(tensors_.state(), {.step = 7});
    const Error error = error_of([&] { one.wait(); });
    EXPECT_EQ(error.reason(), ErrorCode::kSystem);
    EXPECT_EQ(error.system_errno(), EAGAIN);
    EXPECT_THAT(error.what(), HasSubstr("the save of step 7 in the background failed"));
    EXPECT_TRUE(one.wait());  // it was reported
}

TEST_F(SaveAsync, AFailureIsThrownByCloseAndTheStoreIsClosed) {
    CheckpointStore one = store();
    CheckpointStore other = store();
    other.save(tensors_.state());
    one.save_async(tensors_.state(), {.step = 7});
    EXPECT_EQ(error_of([&] { one.close(); }).system_errno(), EAGAIN);
    one.close();  // it was reported
    EXPECT_EQ(error_of([&] { one.save(tensors_.state()); }).reason(), ErrorCode::kClosed);
    EXPECT_EQ(error_of([&] { one.save_async(tensors_.state()); }).reason(), ErrorCode::kClosed);
    EXPECT_TRUE(one.latest());
    EXPECT_TRUE(one.wait());
}

TEST_F(SaveAsync, CloseFinishesTheSavesAndReleasesTheLock) {
    CheckpointStore one = store();
    for (std::uint64_t step = 1; step <= 3; ++step) {
        one.save_async(tensors_.state(), {.step = step});
    }
    one.close();
    CheckpointStore other = store();
    EXPECT_EQ(other.latest()->step, 3U);
    other.save(tensors_.state(), {.step = 4});
    EXPECT_EQ(one.list().size(), 4U);
}

// It would wait for itself.
TEST_F(SaveAsync, TheProgressFunctionOfASaveMayNotSave) {
    CheckpointStore one = store();
    std::vector<ErrorCode> refused;
    const auto tries = [&](std::uint64_t, std::uint64_t) {
        const auto code_of = [&](const auto& call) { refused.push_back(error_of(call).reason()); };
        if (refused.empty()) {
            code_of([&] { one.save(tensors_.state()); });
            code_of([&] { one.save_async(tensors_.state()); });
            code_of([&] { one.collect(); });
            code_of([&] { one.remove(1); });
            code_of([&] { one.close(); });
            code_of([&] { one.wait(); });
        }
        return true;
    };
    one.save(tensors_.state(), {.step = 1, .progress = tries});
    EXPECT_THAT(refused, Each(ErrorCode::kInvalidArgument));
    EXPECT_EQ(refused.size(), 6U);
    refused.clear();
    one.save_async(tensors_.state(), {.step = 2, .progress = tries}).result();
    EXPECT_EQ(refused.size(), 6U);
    EXPECT_EQ(one.list().size(), 2U);
}

TEST_F(SaveAsync, WhatCannotBeSavedIsAnErrorOfTheCall) {
    CheckpointStore own = store();
    State wrong = tensors_.state();
    wrong.structure = "{}";
    EXPECT_EQ(error_of([&] { own.save_async(wrong); }).reason(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(own.list().empty());
}

TEST_F(SaveAsync, ACancelledSaveLeavesNothing) {
    CheckpointStore own = store();
    const Gate gate;
    PendingSave pending = own.save_async(tensors_.state(), {.progress = gate.progress()});
    pending.cancel();
    *gate.open = true;
    EXPECT_EQ(error_of([&] { (void)pending.result(); }).reason(), ErrorCode::kCancelled);
    EXPECT_TRUE(own.list().empty());
    EXPECT_EQ(own.save(tensors_.state()).step, 0U);
}

TEST_F(SaveAsync, TheChildOfAForkHasNoneOfTheParents) {
    CheckpointStore own = store();
    const Gate gate;
    PendingSave pending = own.save_async(tensors_.state(), {.progress = gate.progress()});
    while (!*gate.reached) {
        std::this_thread::sleep_for(1ms);
    }
    const pid_t child = ::fork();
    if (child == 0) {
        const bool failed = pending.done() && error_of([&] { (void)pending.result(); }).reason() ==
                                                  ErrorCode::kCancelled;
        const bool refused = error_of([&] { own.save_async(tensors_.state()); }).reason() ==
                             ErrorCode::kInvalidArgument;
        ::_exit((failed && refused) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    *gate.open = true;
    EXPECT_EQ(pending.result().generation, 1U);
}

}  // namespace
}  // namespace penstock
