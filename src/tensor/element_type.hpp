// SPDX-License-Identifier: Apache-2.0
// The type of a tensor's elements. Names and values are ours; a format or framework has its own
// name for a type, defined there.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::tensor {

enum class ElementType : std::uint8_t {
    kBool,
    kU8,
    kI8,
    kU16,
    kI16,
    kU32,
    kI32,
    kU64,
    kI64,
    kF16,
    kBF16,
    kF32,
    kF64,
    kC32,  ///< two F16
    kC64,
    kC128,
    kF8E4M3,
    kF8E5M2,
    kF8E4M3Fnuz,
    kF8E5M2Fnuz,
    kF8E8M0,
    kF6E2M3,
    kF6E3M2,
    kF4E2M1,
};

inline constexpr int kElementTypes = static_cast<int>(ElementType::kF4E2M1) + 1;

/// Bits of an element: 4 to 128.
[[nodiscard]] constexpr std::uint64_t bits_of(ElementType type) {
    switch (type) {
        case ElementType::kF4E2M1:
            return 4;
        case ElementType::kF6E2M3:
        case ElementType::kF6E3M2:
            return 6;
        case ElementType::kBool:
        case ElementType::kU8:
        case ElementType::kI8:
        case ElementType::kF8E4M3:
        case ElementType::kF8E5M2:
        case ElementType::kF8E4M3Fnuz:
        case ElementType::kF8E5M2Fnuz:
        case ElementType::kF8E8M0:
            return 8;
        case ElementType::kU16:
        case ElementType::kI16:
        case ElementType::kF16:
        case ElementType::kBF16:
            return 16;
        case ElementType::kU32:
        case ElementType::kI32:
        case ElementType::kF32:
        case ElementType::kC32:
            return 32;
        case ElementType::kU64:
        case ElementType::kI64:
        case ElementType::kF64:
        case ElementType::kC64:
            return 64;
        case ElementType::kC128:
            return 128;
    }
    return 0;
}

}  // namespace penstock::tensor
