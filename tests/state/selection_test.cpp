// SPDX-License-Identifier: Apache-2.0
// Names and boxes. That patterns mean what Python's fnmatch says is
// python/tests/test_state_load.py's.
#include "state/selection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace penstock::state {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string_view> kNames = {"h.1.w", "h.0.w", "h.0.b", "wte", "wte*", "h.0.w"};

// (tensor, wanted) each, as text.
std::vector<std::string> selected(const std::vector<std::string_view>& wanted) {
    const auto found = select(kNames, wanted);
    std::vector<std::string> out;
    for (const Selected& one : found.value()) {
        out.push_back(std::to_string(one.tensor) + ":" + std::to_string(one.wanted));
    }
    return out;
}

std::string refused(const std::vector<std::string_view>& wanted) {
    const auto found = select(kNames, wanted);
    EXPECT_FALSE(found);
    EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
    return found.error().message;
}

TEST(Selection, IsInTheOrderOfWhatIsWantedAndHasEachTensorOnce) {
    EXPECT_THAT(selected({}), ElementsAre());
    EXPECT_THAT(selected({"wte", "h.*.w"}), ElementsAre("3:0", "0:1", "1:1", "5:1"));
    EXPECT_THAT(selected({"h.*", "h.0.b"}), ElementsAre("0:0", "1:0", "2:1", "5:0"));
}

TEST(Selection, ANameIsNoPatternWhereATensorHasIt) {
    EXPECT_THAT(selected({"wte*"}), ElementsAre("4:0"));
    EXPECT_THAT(selected({"h.0.w"}), ElementsAre("1:0", "5:0"));
    EXPECT_THAT(selected({"wte[*]", "?te"}), ElementsAre("4:0", "3:1"));
}

TEST(Selection, ANameIsOfAllBelowIt) {
    EXPECT_THAT(selected({"h"}), ElementsAre("0:0", "1:0", "2:0", "5:0"));
    EXPECT_THAT(selected({"h.0"}), ElementsAre("1:0", "2:0", "5:0"));
    EXPECT_THAT(selected({"h.0", "h.0.b"}), ElementsAre("1:0", "2:1", "5:0"));
}

TEST(Selection, WhatNothingHasIsNamedWithAHint) {
    EXPECT_EQ(refused({"wte", "wtf"}), "it has no tensor 'wtf'; did you mean 'wte'?");
    EXPECT_EQ(refused({"hh.0"}), "it has no tensor 'hh.0'; did you mean 'h.0'?");
    EXPECT_THAT(refused({"q*\n"}), StartsWith("it has no tensor 'q*\\x0a'; its names are '"));
}

TEST(Selection, CharactersAreCodePointsAndOtherBytes) {
    EXPECT_TRUE(matches("größe", "gr?[a-ß]e"));
    EXPECT_FALSE(matches("größe", "gr??ße"));
    EXPECT_TRUE(
        matches("a\xFF"
                "b",
                "a?b"));
    EXPECT_FALSE(matches("", "?"));
    EXPECT_TRUE(matches("", "**"));
}

TEST(Selection, ManyStarsTakeNoLongerThanTheirProduct) {
    const std::string name(20'000, 'a');
    std::string pattern;
    for (int i = 0; i < 50; ++i) {
        pattern += "*a";
    }
    EXPECT_FALSE(matches(name, pattern + "*b"));
    EXPECT_TRUE(matches(name, pattern + "*"));
}

TEST(Selection, ABoxIsInsideOrAnErrorThatNamesTheTensor) {
    const std::vector<std::uint64_t> shape = {4, 3};
    const TensorBox all = inside({}, shape, "t").value();
    EXPECT_THAT(all.begin, ElementsAre(0, 0));
    EXPECT_THAT(all.end, ElementsAre(4, 3));
    EXPECT_EQ(all.elements(), 12U);
    EXPECT_EQ(inside({{1, 3}, {4, 3}}, shape, "t").value().elements(), 0U);
    EXPECT_EQ(inside({}, {}, "t").value().elements(), 1U);
    for (const TensorBox& wrong : {TensorBox{{0, 0}, {4, 4}}, TensorBox{{2, 0}, {1, 3}},
                                   TensorBox{{0}, {4}}, TensorBox{{0, 0, 0}, {4, 3, 1}}}) {
        const auto found = inside(wrong, shape, "t");
        ASSERT_FALSE(found);
        EXPECT_THAT(found.error().message, HasSubstr("tensor 't' has the shape [4, 3], and ["));
    }
}

}  // namespace
}  // namespace penstock::state
