// SPDX-License-Identifier: Apache-2.0
// Names of scales as quantizers write them, and names of other tensors.
#include "state/match/scale_owners.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::state {
namespace {

using testing::HasSubstr;

std::string owner(const std::string& name, const std::vector<DescribedTensor>& tensors) {
    return std::string(ScaleOwners(tensors).owner_of(name));
}

const std::vector<DescribedTensor> kLayer = {{"l.0.q.weight", "float8_e4m3fn", {8, 8}},
                                             {"l.0.q.bias", "bfloat16", {8}},
                                             {"l.0.norm.weight", "bfloat16", {8}},
                                             {"l.0.e.up_blocks", "uint8", {8, 8, 8, 8}},
                                             {"embed", "float32", {8, 8}}};

TEST(ScaleOwners, FloatsAreConvertedAndNothingElse) {
    EXPECT_TRUE(is_converted("bfloat16", "float64"));
    EXPECT_TRUE(is_converted("int8", "int8"));
    for (const std::string_view other :
         {"int8", "bool", "complex64", "float8_e4m3fn", "float4_e2m1fn_x2", "F6_E2M3", "int64"}) {
        EXPECT_FALSE(is_converted(other, "float32")) << other;
        EXPECT_FALSE(is_converted("float32", other)) << other;
    }
}

TEST(ScaleOwners, FindsWhatQuantizersWrite) {
    for (const std::string name :
         {"weight_scale", "weight_scale_inv", "weight_scale_2", "weight_zero_point",
          "weight.absmax", "weight.quant_map", "weight.nested_absmax",
          "weight.quant_state.bitsandbytes__nf4", "weight_g_idx", "weight_global_scale",
          "weight._scale", "weight._shift", "weight:scale", "weight_quantizer._amax",
          "weight_fake_quant.activation_post_process.scale"}) {
        EXPECT_EQ(owner("l.0.q." + name, kLayer), "l.0.q.weight") << name;
    }
    for (const std::string name :
         {"SCB", "scale", "scales", "scale_inv", "scale_weight", "input_scale", "input_zero_point",
          "zero_point", "qzeros", "g_idx", "k_scale", "output_scale", "input_quantizer._amax",
          "activation_post_process_0.scale", "codebooks", "lut", "tables2"}) {
        EXPECT_EQ(owner("l.0.q." + name, kLayer), "l.0.q.weight") << name;
    }
    EXPECT_EQ(owner("l.0.e.up_scales", kLayer), "l.0.e.up_blocks");
    EXPECT_EQ(owner("l.0.e.up_blocks_scale", kLayer), "l.0.e.up_blocks");
    EXPECT_EQ(owner("embed_scale", kLayer), "embed");
    EXPECT_EQ(owner("scale", {{"weight", "int8", {8, 8}}}), "weight");
}

TEST(ScaleOwners, OtherNamesAreNotScales) {
    for (const std::string name : {"logit_scale",
                                   "l.0.logit_scale",
                                   "l.0.norm.scale",
                                   "l.0.q.bias_extra",
                                   "l.0.q.lora_A.weight",
                                   "l.0.layer_scale",
                                   "l.1.q.weight_scale",
                                   "l.0.q.weight_mask",
                                   "scale_shift_table",
                                   "l.0.q.shift",
                                   "l.0.q.table",
                                   "l.0.rotary.inv_freq",
                                   "1.scale",
                                   "0",
                                   "",
                                   ".",
                                   "_",
                                   "l..scale",
                                   "embedding_scale_layer.weight",
                                   "l.0.q.weight"}) {
        EXPECT_EQ(owner(name, kLayer), "") << name;
    }
}

TEST(ScaleOwners, SaysHowAFileIsQuantized) {
    const auto kind = [](const std::string& name, const std::string& dtype) {
        return quantized_as(
            std::vector<DescribedTensor>{{"a.weight", dtype, {8, 8}}, {name, "float32", {8}}});
    };
    EXPECT_EQ(kind("a.qzeros", "float32"), "weights of GPTQ or AWQ ('a.qzeros')");
    EXPECT_THAT(kind("a.weight.absmax", "uint8"), HasSubstr("4-bit weights of bitsandbytes"));
    EXPECT_THAT(kind("a.SCB", "int8"), HasSubstr("int8 weights of bitsandbytes"));
    EXPECT_THAT(kind("a.weight_packed", "int32"), HasSubstr("compressed-tensors"));
    EXPECT_EQ(kind("a.weight_scale", "int8"),
              "weights with scales ('a.weight' with 'a.weight_scale')");
    EXPECT_EQ(kind("a.bias", "float8_e5m2"), "float8_e5m2 weights ('a.weight')");
    EXPECT_EQ(kind("a.bias", "float4_e2m1fn_x2"), "float4_e2m1fn_x2 weights ('a.weight')");
    EXPECT_EQ(kind("a.scale", "float32"), "");
    EXPECT_EQ(kind("a.ABSMAX2", "float32"), "");
    EXPECT_EQ(quantized_as({}), "");
}

}  // namespace
}  // namespace penstock::state
