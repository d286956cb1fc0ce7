// SPDX-License-Identifier: Apache-2.0
// The names of torch for element types. Those of torch 1 have a storage class of their own
// ("FloatStorage"); later ones are rebuilt from untyped storages.
#pragma once

#include "tensor/element_type.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock::format {

inline constexpr std::size_t kTensorRankMax = 64;  // torch's own

struct TorchType {
    tensor::ElementType type;
    std::string_view dtype;    ///< "float32"
    std::string_view storage;  ///< "FloatStorage"; empty: untyped
    std::uint64_t bytes;       ///< of an element as torch counts them (two F4 are one)
};

inline constexpr std::array<TorchType, 22> kTorchTypes{{
    {tensor::ElementType::kF32, "float32", "FloatStorage", 4},
    {tensor::ElementType::kF64, "float64", "DoubleStorage", 8},
    {tensor::ElementType::kF16, "float16", "HalfStorage", 2},
    {tensor::ElementType::kBF16, "bfloat16", "BFloat16Storage", 2},
    {tensor::ElementType::kI64, "int64", "LongStorage", 8},
    {tensor::ElementType::kI32, "int32", "IntStorage", 4},
    {tensor::ElementType::kI16, "int16", "ShortStorage", 2},
    {tensor::ElementType::kI8, "int8", "CharStorage", 1},
    {tensor::ElementType::kU8, "uint8", "ByteStorage", 1},
    {tensor::ElementType::kBool, "bool", "BoolStorage", 1},
    {tensor::ElementType::kC64, "complex64", "ComplexFloatStorage", 8},
    {tensor::ElementType::kC128, "complex128", "ComplexDoubleStorage", 16},
    {tensor::ElementType::kC32, "complex32", "", 4},
    {tensor::ElementType::kU16, "uint16", "", 2},
    {tensor::ElementType::kU32, "uint32", "", 4},
    {tensor::ElementType::kU64, "uint64", "", 8},
    {tensor::ElementType::kF8E4M3, "float8_e4m3fn", "", 1},
    {tensor::ElementType::kF8E5M2, "float8_e5m2", "", 1},
    {tensor::ElementType::kF8E4M3Fnuz, "float8_e4m3fnuz", "", 1},
    {tensor::ElementType::kF8E5M2Fnuz, "float8_e5m2fnuz", "", 1},
    {tensor::ElementType::kF8E8M0, "float8_e8m0fnu", "", 1},
    {tensor::ElementType::kF4E2M1, "float4_e2m1fn_x2", "", 1},
}};

/// nullptr if torch has no such type.
[[nodiscard]] constexpr const TorchType* torch_type(tensor::ElementType type) {
    for (const TorchType& row : kTorchTypes) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

[[nodiscard]] constexpr const TorchType* torch_type_named(std::string_view dtype) {
    for (const TorchType& row : kTorchTypes) {
        if (row.dtype == dtype) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace penstock::format
