// SPDX-License-Identifier: Apache-2.0
#include "engine/descriptors.hpp"

#include "os/machine/limits.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <vector>

namespace penstock::engine {
namespace {

constexpr std::uint64_t kLimit = 64;

class DescriptorRoom : public ::testing::Test {
protected:
    void SetUp() override {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        rlimit limit = before_;
        limit.rlim_cur = kLimit;
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    void TearDown() override { ::setrlimit(RLIMIT_NOFILE, &before_); }

    struct Asker : RoomWaiter {
        std::vector<Asker*>* told = nullptr;
    };
    Asker asker(std::uint32_t wanted, const void* what = nullptr) {
        Asker one;
        one.files = wanted;
        one.waits_for = what;
        one.told = &told_;
        one.admitted = [](RoomWaiter& waiter) noexcept {
            auto& self = static_cast<Asker&>(waiter);
            self.told->push_back(&self);
        };
        return one;
    }

    Descriptors room_;
    std::vector<Asker*> told_;

private:
    rlimit before_{};
};

TEST_F(DescriptorRoom, OldestFirstAndNeverMoreThanThereIs) {
    std::vector<Asker> first(4, asker(1000));
    for (Asker& one : first) {
        ASSERT_TRUE(room_.take(one));
        EXPECT_LE(one.files * Descriptors::kPerFile * 4, kLimit);
        EXPECT_GT(one.files, 5U);
    }
    Asker second = asker(1);
    Asker third = asker(1);
    EXPECT_FALSE(room_.take(second));
    EXPECT_FALSE(room_.take(third));
    // Its files had one descriptor each: the rest is for those who wait.
    room_.opened(first[0].files, first[0].files, static_cast<int>(first[0].files) - 1);
    ASSERT_GE(told_.size(), 1U);
    EXPECT_EQ(told_.front(), &second);
    room_.closed(first[0].files);
    ASSERT_EQ(told_.size(), 2U);
    EXPECT_EQ(told_.back(), &third);
}

TEST_F(DescriptorRoom, WhatTheProgramHasIsSeenInTheNumbers) {
    Asker first = asker(1);
    ASSERT_TRUE(room_.take(first));
    room_.opened(1, 2, 59);  // 60 are taken, 58 of them not by us
    Asker second = asker(1);
    EXPECT_FALSE(room_.take(second));
    room_.closed(2);
    ASSERT_EQ(told_.size(), 1U);  // with none of ours open, one is let in
    EXPECT_EQ(second.files, 1U);
    room_.opened(1, 2, 11);  // the program has closed its own
    Asker third = asker(4);
    EXPECT_TRUE(room_.take(third));
    EXPECT_EQ(third.files, 4U);
    EXPECT_TRUE(Descriptors::scarce(60));
    EXPECT_FALSE(Descriptors::scarce(30));
}

TEST_F(DescriptorRoom, RefusedWaitsForOursAndEndsWithoutThem) {
    Asker first = asker(2);
    ASSERT_TRUE(room_.take(first));
    room_.opened(2, 4, 20);
    Asker second = asker(2);
    ASSERT_TRUE(room_.take(second));
    const std::uint64_t before = room_.closings();
    EXPECT_EQ(room_.refused(second, before), Descriptors::Refused::kQueued);
    EXPECT_TRUE(told_.empty());
    room_.closed(4);
    ASSERT_EQ(told_.size(), 1U);
    // None of ours is open now: refused again, it is an error; unless one closed meanwhile.
    EXPECT_EQ(room_.refused(second, before), Descriptors::Refused::kTryAgain);
    ASSERT_TRUE(room_.take(second));
    EXPECT_EQ(room_.refused(second, room_.closings()), Descriptors::Refused::kNoneOfOurs);
}

// Two that were refused with nothing open must not wait for each other.
TEST_F(DescriptorRoom, TwoThatAreRefusedEndBoth) {
    Asker first = asker(1);
    Asker second = asker(1);
    ASSERT_TRUE(room_.take(first));
    ASSERT_TRUE(room_.take(second));
    EXPECT_EQ(room_.refused(first, room_.closings()), Descriptors::Refused::kQueued);
    EXPECT_EQ(room_.refused(second, room_.closings()), Descriptors::Refused::kNoneOfOurs);
    ASSERT_EQ(told_.size(), 1U);
    EXPECT_EQ(told_.front(), &first);
    EXPECT_EQ(room_.refused(first, room_.closings()), Descriptors::Refused::kNoneOfOurs);
}

TEST_F(DescriptorRoom, DroppedWaitersAreNotTold) {
    Asker first = asker(1);
    ASSERT_TRUE(room_.take(first));
    room_.opened(1, 2, 59);
    const int mine = 0;
    Asker second = asker(1, &mine);
    Asker third = asker(1);
    EXPECT_FALSE(room_.take(second));
    EXPECT_FALSE(room_.take(third));
    auto dropped = room_.drop(&mine);
    EXPECT_EQ(dropped.pop_front(), &second);
    EXPECT_TRUE(dropped.empty());
    room_.closed(2);
    ASSERT_EQ(told_.size(), 1U);
    EXPECT_EQ(told_.front(), &third);
}

}  // namespace
}  // namespace penstock::engine
