// SPDX-License-Identifier: Apache-2.0
#include "state/match/comparison.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::state {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

const std::vector<ModelTensor> kModel = {{{"a.weight", "float32", {2, 3}}, "1"},
                                         {{"b.weight", "float32", {2, 3}}, "1"},
                                         {{"n", "float32", {}}, "2"}};

TEST(CompareStates, NamesWhatOnlyOneSideHas) {
    const std::vector<DescribedTensor> file = {{"m.a.weight", "bfloat16", {2, 3}},
                                               {"m.x", "int8", {}}};
    const Comparison found = compare_states(file, kModel, "m", false);
    EXPECT_THAT(found.missing, ElementsAre("n"));  // b.weight is a.weight
    EXPECT_THAT(found.unexpected, ElementsAre("x"));
    EXPECT_THAT(found.problems, IsEmpty());
    EXPECT_THAT(compare_states(file, kModel, "m", true).problems,
                ElementsAre("Missing key(s) in state_dict: \"n\". ",
                            "Unexpected key(s) in state_dict: \"x\". "));
}

TEST(CompareStates, RefusesShapesTypesAndLostScales) {
    const std::vector<DescribedTensor> file = {{"a.weight", "float8_e4m3fn", {2, 3}},
                                               {"a.weight_scale", "float32", {2}},
                                               {"b.weight", "float16", {3, 2}},
                                               {"n", "float32", {1}}};
    EXPECT_THAT(
        compare_states(file, kModel, "", false).problems,
        ElementsAre("type mismatch for a.weight: float8_e4m3fn in the file, float32 in the current "
                    "model.",
                    StartsWith("size mismatch for b.weight: copying a param with shape "
                               "torch.Size([3, 2]) from checkpoint"),
                    StartsWith("a.weight_scale is a scale, zero point or table of a.weight"),
                    HasSubstr("quantized: weights with scales")));
    EXPECT_THAT(compare_states({}, {}, "", true).problems, IsEmpty());
}

TEST(CompareStates, HasTheHintLast) {
    const std::vector<DescribedTensor> file = {{"module.a.weight", "float32", {2, 3}},
                                               {"module.n", "float32", {}}};
    const Comparison found = compare_states(file, kModel, "", true);
    EXPECT_THAT(found.problems.back(),
                HasSubstr("Hint: the names in the file begin with 'module.'"));
    EXPECT_THAT(found.hint, HasSubstr("names='module'"));
}

}  // namespace
}  // namespace penstock::state
