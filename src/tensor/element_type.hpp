// SPDX-License-Identifier: Apache-2.0
// The one table of types of elements: what formats and frameworks call each.
#pragma once

#include <penstock/tensor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock::tensor {

using penstock::ElementType;

struct ElementTypeRow {
    ElementType type;
    std::uint8_t bits;
    std::string_view name;  ///< ours, and safetensors' where that has it
    bool in_safetensors;
    const char* torch;               ///< "float32", also NumPy's; empty: torch has none
    std::string_view torch_storage;  ///< "FloatStorage" of torch 1; empty: untyped
    std::int8_t dlpack;  ///< 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 7 and up 8-bit
                         ///< floats; -1: Python has no arrays of it here
    const char* buffer;  ///< of the struct module; nullptr where that has none

    /// Bytes of an element as torch counts them (two F4 are one).
    [[nodiscard]] constexpr std::uint64_t torch_bytes() const { return bits <= 8 ? 1U : bits / 8U; }
};

inline constexpr std::array<ElementTypeRow, 24> kElementTypes{{
    {ElementType::kU8, 8, "U8", true, "uint8", "ByteStorage", 1, "B"},
    {ElementType::kI8, 8, "I8", true, "int8", "CharStorage", 0, "b"},
    {ElementType::kBool, 8, "BOOL", true, "bool", "BoolStorage", 6, "?"},
    {ElementType::kU16, 16, "U16", true, "uint16", "", 1, "H"},
    {ElementType::kI16, 16, "I16", true, "int16", "ShortStorage", 0, "h"},
    {ElementType::kU32, 32, "U32", true, "uint32", "", 1, "I"},
    {ElementType::kI32, 32, "I32", true, "int32", "IntStorage", 0, "i"},
    {ElementType::kU64, 64, "U64", true, "uint64", "", 1, "Q"},
    {ElementType::kI64, 64, "I64", true, "int64", "LongStorage", 0, "q"},
    {ElementType::kF16, 16, "F16", true, "float16", "HalfStorage", 2, "e"},
    {ElementType::kBF16, 16, "BF16", true, "bfloat16", "BFloat16Storage", 4, nullptr},
    {ElementType::kF32, 32, "F32", true, "float32", "FloatStorage", 2, "f"},
    {ElementType::kF64, 64, "F64", true, "float64", "DoubleStorage", 2, "d"},
    {ElementType::kC32, 32, "C32", false, "complex32", "", -1, nullptr},
    {ElementType::kC64, 64, "C64", true, "complex64", "ComplexFloatStorage", 5, "Zf"},
    {ElementType::kC128, 128, "C128", false, "complex128", "ComplexDoubleStorage", 5, "Zd"},
    {ElementType::kF8E4M3, 8, "F8_E4M3", true, "float8_e4m3fn", "", 10, nullptr},
    {ElementType::kF8E4M3Fnuz, 8, "F8_E4M3FNUZ", true, "float8_e4m3fnuz", "", 11, nullptr},
    {ElementType::kF8E5M2, 8, "F8_E5M2", true, "float8_e5m2", "", 12, nullptr},
    {ElementType::kF8E5M2Fnuz, 8, "F8_E5M2FNUZ", true, "float8_e5m2fnuz", "", 13, nullptr},
    {ElementType::kF8E8M0, 8, "F8_E8M0", true, "float8_e8m0fnu", "", 14, nullptr},
    {ElementType::kF4E2M1, 4, "F4", true, "float4_e2m1fn_x2", "", -1, nullptr},
    {ElementType::kF6E2M3, 6, "F6_E2M3", true, "", "", -1, nullptr},
    {ElementType::kF6E3M2, 6, "F6_E3M2", true, "", "", -1, nullptr},
}};

/// The first row with this property, or nullptr.
template <typename Has>
[[nodiscard]] constexpr const ElementTypeRow* find_row(const Has& has) {
    for (const ElementTypeRow& row : kElementTypes) {
        if (has(row)) {
            return &row;
        }
    }
    return nullptr;
}

[[nodiscard]] constexpr const ElementTypeRow& row_of(ElementType type) {
    return *find_row([type](const auto& row) { return row.type == type; });
}

/// Bits of an element: 4 to 128.
[[nodiscard]] constexpr std::uint64_t bits_of(ElementType type) {
    return row_of(type).bits;
}

}  // namespace penstock::tensor
