// SPDX-License-Identifier: Apache-2.0
#include "ranks/message.hpp"

#include <penstock/error.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace penstock::ranks {
namespace {

TEST(Message, FieldsComeBack) {
    const std::string bytes =
        MessageWriter().number(7).text("rank").text("").number(UINT64_MAX).take();
    MessageReader in(bytes);
    EXPECT_EQ(in.number(), 7U);
    EXPECT_EQ(in.text(), "rank");
    EXPECT_EQ(in.text(), "");
    EXPECT_EQ(in.number(), UINT64_MAX);
    EXPECT_NO_THROW(in.end());
}

TEST(Message, EachOneCutShortIsAnError) {
    const std::string bytes = MessageWriter().number(7).text("rank").take();
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        const std::string cut = bytes.substr(0, length);
        MessageReader in(cut);
        EXPECT_THROW(
            {
                static_cast<void>(in.number());
                static_cast<void>(in.text());
            },
            Error)
            << length;
    }
}

TEST(Message, TextLongerThanTheMessageIsAnError) {
    const std::string bytes = MessageWriter().number(UINT64_MAX).take();
    MessageReader in(bytes);
    EXPECT_THROW(static_cast<void>(in.text()), Error);
}

TEST(Message, RestIsAnError) {
    const std::string bytes = MessageWriter().number(1).number(2).take();
    MessageReader in(bytes);
    EXPECT_EQ(in.number(), 1U);
    EXPECT_THROW(in.end(), Error);
}

}  // namespace
}  // namespace penstock::ranks
