// SPDX-License-Identifier: Apache-2.0
#include "tensor/element_type.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock {
namespace {

TEST(ElementTypes, EachHasOneRowAndIsFoundByItsNames) {
    std::set<ElementType> seen;
    for (const tensor::ElementTypeRow& row : tensor::kElementTypes) {
        EXPECT_TRUE(seen.insert(row.type).second);
        EXPECT_EQ(element_type_named(name_of(row.type)), row.type) << row.name;
        EXPECT_EQ(bits_of(row.type), row.bits);
        if (row.torch[0] != 0) {
            EXPECT_EQ(element_type_named(row.torch), row.type) << row.torch;
        }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(ElementType::kF4E2M1) + 1);
    EXPECT_EQ(name_of(ElementType::kBF16), "BF16");
    EXPECT_FALSE(element_type_named(""));
    EXPECT_FALSE(element_type_named("bf16"));
}

TEST(ElementTypes, BytesOfATensorDoNotOverflow) {
    const auto bytes = [](ElementType type, std::vector<std::uint64_t> shape) {
        return bytes_of(type, shape);
    };
    EXPECT_EQ(bytes(ElementType::kF32, {}), 4U);
    EXPECT_EQ(bytes(ElementType::kC128, {3, 5}), 240U);
    EXPECT_EQ(bytes(ElementType::kF4E2M1, {3, 2}), 3U);
    EXPECT_EQ(bytes(ElementType::kF4E2M1, {3}), std::nullopt);
    EXPECT_EQ(bytes(ElementType::kF6E2M3, {4}), 3U);
    EXPECT_EQ(bytes(ElementType::kF6E2M3, {12}), 9U);
    EXPECT_EQ(bytes(ElementType::kF6E2M3, {2}), std::nullopt);
    const std::uint64_t large = std::uint64_t{1} << 60;
    EXPECT_EQ(bytes(ElementType::kU8, {large}), large);
    EXPECT_EQ(bytes(ElementType::kU8, {large, 2}), std::nullopt);
    EXPECT_EQ(bytes(ElementType::kU16, {large}), std::nullopt);
    EXPECT_EQ(bytes(ElementType::kF4E2M1, {large, 2}), large);
    EXPECT_EQ(bytes(ElementType::kF4E2M1, {large, 4}), std::nullopt);
    EXPECT_EQ(bytes(ElementType::kF32, {0, large, large}), 0U);
}

}  // namespace
}  // namespace penstock
