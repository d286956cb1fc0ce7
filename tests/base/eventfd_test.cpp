// SPDX-License-Identifier: Apache-2.0
#include "base/eventfd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace penstock::base {
namespace {

// By what the kernel answers (Linux 6.10), and by its numbers.
TEST(Eventfd, TwoDescriptorsAreOfOneOrNot) {
    const UniqueFd first(::eventfd(0, EFD_CLOEXEC));
    const UniqueFd second(::eventfd(0, EFD_CLOEXEC));
    const UniqueFd copy(::dup(first.get()));
    const UniqueFd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(are_of_one_eventfd(first.get(), copy.get()));
    EXPECT_FALSE(are_of_one_eventfd(first.get(), second.get()));
    EXPECT_FALSE(are_of_one_eventfd(first.get(), file.get()));
    EXPECT_FALSE(are_of_one_eventfd(first.get(), -1));
    EXPECT_NE(eventfd_number(first.get()), 0U);
    EXPECT_EQ(eventfd_number(first.get()), eventfd_number(copy.get()));
    EXPECT_NE(eventfd_number(first.get()), eventfd_number(second.get()));
    EXPECT_EQ(eventfd_number(file.get()), 0U);
    EXPECT_EQ(eventfd_number(-1), 0U);
}

TEST(Eventfd, CopiesAreSharedWhileOneIsHeld) {
    EventfdCopies copies;
    const UniqueFd first(::eventfd(0, EFD_CLOEXEC));
    auto copy = copies.copy_of(first.get());
    ASSERT_TRUE(copy);
    EXPECT_NE((*copy)->get(), first.get());
    const auto again = copies.copy_of(first.get());
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, *copy);
    const UniqueFd second(::eventfd(0, EFD_CLOEXEC));
    ASSERT_EQ(::dup3(second.get(), first.get(), O_CLOEXEC), first.get());
    const auto other = copies.copy_of(first.get());
    ASSERT_TRUE(other);
    EXPECT_NE(*other, *copy);
    EXPECT_TRUE(are_of_one_eventfd((*other)->get(), second.get()));
    EXPECT_FALSE(copies.copy_of(-1));
}

}  // namespace
}  // namespace penstock::base
