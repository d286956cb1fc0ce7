// SPDX-License-Identifier: Apache-2.0
// The form of values in a structure: null, numbers and strings as in JSON, all else as a list that
// begins with its tag (format/grammar.hpp). Whole numbers are integers, others have a '.' or an
// 'e'. Between the tag and the items (numbers of values):
//
//   OrderedDict          null, or the number of a dict
//   defaultdict          null, or "list", ..
//   dtype, device        its name
//   tensor               its number among the tensors; if it has attributes, the number of a dict
//   rebuilt              its tag (format/rebuilt.hpp); null, or the number of a dict of attributes
//   bytes, bytearray     base64
//   int                  base64 of two's complement, little-endian
//   float, complex       64 bits in hex, once and twice
//   numpy, ndarray       "<f8", Fortran order (ndarray), base64
//   unread               name, why; of a `.pt` that was read, and in no checkpoint
#pragma once

#include "format/grammar.hpp"
#include "format/value.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::state {

/// The operation in error messages.
inline constexpr std::string_view kReadStructure = "read structure of checkpoint";
inline constexpr std::uint64_t kStructureVersion = 1;
/// Longer names of tensors are cut.
inline constexpr std::size_t kTensorNameBytesMax = 1000;
inline constexpr std::size_t kStructureValuesMax = std::size_t{1} << 24;
/// Limit on strings, bytes and arrays outside tensors; a manifest has room for all of it as base64.
inline constexpr std::uint64_t kStructureDataMax = std::uint64_t{256} << 20;

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

}  // namespace penstock::state
