// SPDX-License-Identifier: Apache-2.0
// How values stand in a structure: null, numbers and strings as JSON has them, all else as a list
// that begins with one of these names. Whole numbers are integers, others have a '.' or an 'e'.
#pragma once

#include "format/value.hpp"
#include "tensor/element_type.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::checkpoint {

inline constexpr std::uint64_t kStructureVersion = 1;
inline constexpr std::size_t kStructureValuesMax = std::size_t{1} << 24;
/// Of strings, bytes and arrays beside the tensors; a manifest has room for all of it as base64.
inline constexpr std::uint64_t kStructureDataMax = std::uint64_t{256} << 20;

struct StructureTag {
    std::string_view name;
    format::ValueKind kind;
};

inline constexpr std::array<StructureTag, 18> kStructureTags{{
    {"list", format::ValueKind::kList},                // ids
    {"tuple", format::ValueKind::kTuple},              // ids
    {"set", format::ValueKind::kSet},                  // ids
    {"frozenset", format::ValueKind::kFrozenSet},      // ids
    {"dict", format::ValueKind::kDict},                // ids: key, value, ..
    {"OrderedDict", format::ValueKind::kOrderedDict},  // null or the id of a dict; key, value, ..
    {"defaultdict", format::ValueKind::kDefaultDict},  // null or "list", ..; key, value, ..
    {"Size", format::ValueKind::kSize},                // ids
    {"dtype", format::ValueKind::kDtype},              // "float32"
    {"device", format::ValueKind::kDevice},            // "cuda:0"
    {"tensor", format::ValueKind::kTensor},            // its number among the tensors
    {"bytes", format::ValueKind::kBytes},              // base64
    {"bytearray", format::ValueKind::kByteArray},      // base64
    {"int", format::ValueKind::kBigInt},               // base64 of two's complement, little-endian
    {"float", format::ValueKind::kFloat},              // its 64 bits in hex: nan, inf
    {"complex", format::ValueKind::kComplex},          // twice 64 bits in hex
    {"numpy", format::ValueKind::kNumpyScalar},        // "<f8", base64
    {"ndarray", format::ValueKind::kNumpyArray},       // "<f8", Fortran order, base64; ids
}};

[[nodiscard]] inline bool is_dict(format::ValueKind kind) {
    return kind == format::ValueKind::kDict || kind == format::ValueKind::kOrderedDict ||
           kind == format::ValueKind::kDefaultDict;
}

/// Row-major, without gaps.
[[nodiscard]] inline std::vector<std::uint64_t> packed_strides(
    std::span<const std::uint64_t> shape) {
    std::vector<std::uint64_t> strides(shape.size());
    std::uint64_t step = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
        strides[d] = step;
        step *= shape[d] == 0 ? 1 : shape[d];
    }
    return strides;
}

}  // namespace penstock::checkpoint
