// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and the bytes of a tensor.
//
//     const auto type = penstock::element_type_named("BF16");
//     const std::vector<std::uint64_t> shape{4096, 4096};
//     std::vector<std::byte> memory(penstock::bytes_of(*type, shape).value());
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace penstock {

/// All element types of safetensors and torch.
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

/// The type of a name of safetensors ("BF16") or of torch ("bfloat16"). Nothing for any other name.
/// Thread-safe, as all of these functions.
[[nodiscard]] PENSTOCK_API std::optional<ElementType> element_type_named(
    std::string_view name) noexcept;
/// The name in safetensors, "BF16"; "C32" and "C128", which it lacks, have names of the same style.
[[nodiscard]] PENSTOCK_API std::string_view name_of(ElementType type) noexcept;
/// Bits of an element: 4 to 128.
[[nodiscard]] PENSTOCK_API std::uint32_t bits_of(ElementType type) noexcept;
/// Bytes of a contiguous tensor. Nothing if they are 2^61 or more, or not a whole number.
[[nodiscard]] PENSTOCK_API std::optional<std::uint64_t> bytes_of(
    ElementType type, std::span<const std::uint64_t> shape) noexcept;

}  // namespace penstock
