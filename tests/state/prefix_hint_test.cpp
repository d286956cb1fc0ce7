// SPDX-License-Identifier: Apache-2.0
#include "state/match/prefix_hint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace penstock::state {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

using Names = std::vector<std::string>;

std::string hint(std::string_view verb, const Names& missing, const Names& unexpected,
                 std::string_view under = "") {
    return prefix_hint(verb, missing, unexpected, under);
}

const Names kPlain = {"a.weight", "a.bias", "b.weight"};

Names with(const std::string& prefix) {
    Names out;
    for (const std::string& name : kPlain) {
        out.push_back(prefix + name);
    }
    return out;
}

TEST(PrefixHint, NamesAPrefixInTheFile) {
    EXPECT_EQ(
        hint("load_into", kPlain, with("module.")),
        "the names in the file begin with 'module.', those of the model do not: names='module' "
        "reads what is below it");
    EXPECT_THAT(hint("load", kPlain, with("model._orig_mod."), "state"),
                HasSubstr("names='state.model._orig_mod' reads"));
    EXPECT_THAT(hint("stream", kPlain, with("model.")),
                HasSubstr("save the tensors again under names without it"));
}

TEST(PrefixHint, NamesAPrefixInTheModel) {
    EXPECT_EQ(hint("load_into", with("_orig_mod."), kPlain),
              "the names of the model begin with '_orig_mod.', those in the file do not: give "
              "model._orig_mod");
    EXPECT_THAT(hint("load", with("module."), kPlain), HasSubstr("give model.module.state_dict()"));
    EXPECT_THAT(hint("stream", with("0.net."), kPlain),
                HasSubstr("give model.get_submodule('0.net')"));
}

TEST(PrefixHint, NamesAWrapperOfAPart) {
    EXPECT_THAT(hint("load_into", Names{"b.weight"}, Names{"b._orig_mod.weight"}),
                StartsWith("some names in the file have '_orig_mod.' in them"));
    EXPECT_THAT(hint("load_into", Names{"b.module.weight"}, Names{"b.weight"}),
                StartsWith("some names of the model have 'module.' in them"));
}

TEST(PrefixHint, SaysNothingWhereNoPrefixExplainsHalf) {
    EXPECT_EQ(hint("load", kPlain, {}), "");
    EXPECT_EQ(hint("load", {}, kPlain), "");
    const Names few = {"x.a.weight", "c", "d"};
    EXPECT_EQ(hint("load", kPlain, few), "");
    const Names near = {"weight2", "amodule.weight3"};
    EXPECT_EQ(hint("load", Names{"weight"}, near), "");
}

TEST(PrefixHint, ManyNamesTakeNoLongerThanTheirNumber) {
    Names missing;
    Names unexpected;
    for (int i = 0; i < 50'000; ++i) {
        missing.push_back("w" + std::to_string(i));
        unexpected.push_back("p" + std::to_string(i) + ".w" + std::to_string(i % 7));
    }
    EXPECT_EQ(hint("load", missing, unexpected), "");
}

}  // namespace
}  // namespace penstock::state
