// SPDX-License-Identifier: Apache-2.0
#include "store/background/background_saver.hpp"

#include "support/text_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock::store {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;

using Spans = std::vector<ConstMemory>;

// As a caller who does nothing else meanwhile.
void wait_for_it(const std::function<bool(std::chrono::nanoseconds)>& step) {
    while (!step(10ms)) {
        std::this_thread::yield();
    }
}

class Saving : public ::testing::Test {
protected:
    [[nodiscard]] Spans spans() const { return {a_, b_}; }
    [[nodiscard]] std::vector<SourceMemory> sources(bool copied = false) const {
        return {{a_, copied}, {b_, copied}};
    }
    [[nodiscard]] CopyChoice unchanging(const std::vector<std::byte>& memory) const {
        return {.copy = true, .unchanging = {{memory.data(), memory.data() + memory.size()}}};
    }

    std::vector<std::byte> a_{100, std::byte{1}};
    std::vector<std::byte> b_{200, std::byte{2}};
    BackgroundSaver saver_{64 * kMib};
};

TEST_F(Saving, AllIsCopiedAndTheCallerMayChangeIt) {
    Spans pieces = spans();
    const StagedSave staged = saver_.stage(pieces, sources(), {}, wait_for_it);
    EXPECT_TRUE(staged.all);
    EXPECT_FALSE(staged.borrows);
    EXPECT_FALSE(staged.tight);
    a_[0] = std::byte{9};
    EXPECT_NE(pieces[0].data, a_.data());
    EXPECT_EQ(pieces[0].data[0], std::byte{1});
    EXPECT_EQ(pieces[1].bytes, b_.size());
    EXPECT_EQ(saver_.reason_of_wait(staged), "");
}

TEST_F(Saving, WhatDoesNotChangeIsWrittenFromWhereItIs) {
    Spans pieces = spans();
    const StagedSave staged = saver_.stage(pieces, sources(), unchanging(a_), wait_for_it);
    EXPECT_EQ(pieces[0].data, a_.data());
    EXPECT_NE(pieces[1].data, b_.data());
    EXPECT_FALSE(staged.all);
    EXPECT_TRUE(staged.borrows);
}

TEST_F(Saving, AMemoryThatIsHalfInARangeIsCopied) {
    Spans pieces = spans();
    CopyChoice choice;
    choice.unchanging = {{a_.data(), a_.data() + a_.size() - 1}};
    const StagedSave staged = saver_.stage(pieces, sources(), choice, wait_for_it);
    EXPECT_NE(pieces[0].data, a_.data());
}

TEST_F(Saving, WithoutACopyNothingIsTheCallersToChange) {
    Spans pieces = spans();
    const StagedSave staged =
        saver_.stage(pieces, sources(), {.copy = false, .unchanging = {}}, wait_for_it);
    EXPECT_EQ(pieces[0].data, a_.data());
    EXPECT_FALSE(staged.all);
    EXPECT_TRUE(staged.borrows);
}

TEST_F(Saving, WhatCameFromADeviceIsACopyAlready) {
    Spans pieces = spans();
    const StagedSave staged = saver_.stage(pieces, sources(true), {}, wait_for_it);
    EXPECT_EQ(pieces[0].data, a_.data());
    EXPECT_TRUE(staged.all);
    EXPECT_TRUE(staged.borrows);  // its memory has to stay
    EXPECT_EQ(saver_.staging().used_bytes(), 0U);
}

TEST_F(Saving, MoreThanTheBudgetIsNotCopied) {
    BackgroundSaver small(1);
    Spans pieces = spans();
    const StagedSave staged = small.stage(pieces, sources(), {}, wait_for_it);
    EXPECT_TRUE(staged.tight);
    EXPECT_FALSE(staged.all);
    EXPECT_TRUE(staged.borrows);
    EXPECT_EQ(pieces[0].data, a_.data());
    EXPECT_THAT(small.reason_of_wait(staged), HasSubstr("does not fit into host_memory"));
}

TEST_F(Saving, AUsedUpBudgetIsWaitedForAndSaidSo) {
    BackgroundSaver saver(2 * kMib);
    Spans first = spans();
    StagedSave held = saver.stage(first, sources(), {}, wait_for_it);
    std::atomic<bool> waiting{false};
    // A save that has the copies, and lets go of them at its end.
    const auto other = saver.queue()->add(
        [&](auto& /*save*/) {
            while (!waiting) {
                std::this_thread::sleep_for(1ms);
            }
            std::this_thread::sleep_for(1100ms);
            held.copy = StagedCopy();
        },
        "other", true);
    Spans second = spans();
    const StagedSave staged = saver.stage(second, sources(), {}, [&](const auto& step) {
        waiting = true;
        wait_for_it(step);
    });
    EXPECT_TRUE(other->wait_done(10s));
    EXPECT_GT(staged.waited_s, 1);
    EXPECT_THAT(saver.reason_of_wait(staged), HasSubstr("waited"));
}

TEST_F(Saving, WhatASaveNeedsIsLetGoByTheNextCallThatFindsItDone) {
    auto kept = std::make_shared<int>(1);
    const std::weak_ptr<int> seen = kept;
    const auto save = saver_.add([](PendingSave&) {}, "one", false, std::move(kept));
    ASSERT_TRUE(save->wait_done(20s));
    EXPECT_FALSE(seen.expired());
    saver_.sweep();
    EXPECT_TRUE(seen.expired());
}

TEST_F(Saving, AFailureThatNobodyAskedForStopsTheNextSaveOnce) {
    const auto fail = [](PendingSave&) {
        throw Error(ErrorCode::kSystem, ENOSPC, "write", "/disk", 7, "it is full");
    };
    ASSERT_TRUE(saver_.add(fail, "step 1", true, nullptr)->wait_done(20s));
    const Error error = test::error_of([&] { saver_.raise_failure("step 2"); });
    EXPECT_EQ(error.system_errno(), ENOSPC);
    EXPECT_EQ(std::string(error.what()),
              "the earlier save of step 1 failed, and step 2 was not begun (saving again goes on): "
              "it is full");
    saver_.raise_failure("step 2");
    ASSERT_TRUE(saver_.add(fail, "step 2", true, nullptr)->wait_done(20s));
    EXPECT_THAT(
        saver_.take_failures(),
        ElementsAre("the save of step 2 failed, and nobody asked for its result: it is full"));
    EXPECT_THAT(saver_.take_failures(), IsEmpty());
}

}  // namespace
}  // namespace penstock::store
