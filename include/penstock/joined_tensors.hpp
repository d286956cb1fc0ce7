// SPDX-License-Identifier: Apache-2.0
// Tensors of a table that are joined from parts of other tensors: the experts of a layer that were
// saved one by one, or one part of a fused product.
//
//     const std::vector<penstock::JoinedTensor> joined{
//         {"down", {2, 64, 32}, {{"experts.0.down", 0, 4096}, {"experts.1.down", 0, 4096}}}};
//     penstock::join_tensors(table, joined);
//
// Nothing is read or copied: the table says where the bytes of a joined tensor are, and they are
// read from there.
#pragma once

#include <penstock/tensor_table.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Contiguous bytes of a tensor of a table.
struct TensorPart {
    std::string tensor;        ///< its name
    std::uint64_t offset = 0;  ///< in bytes, from its first element
    std::uint64_t bytes = 0;
};

struct JoinedTensor {
    std::string name;
    std::vector<std::uint64_t> shape;  ///< in elements; row-major
    std::vector<TensorPart> parts;     ///< its bytes, in their order
};

/// Adds tensors to a table. They have the dtype of their parts, which may be parts of tensors that
/// were joined before. Throws Error, and then does not change the table: kInvalidArgument for a
/// name that the table already has, for no parts, for a part of an unknown tensor or beyond its
/// end, for different dtypes, and for a shape with another number of bytes; kUnsupported for a
/// tensor with strides. Thread-safe for different tables.
PENSTOCK_API void join_tensors(TensorTable& table, std::span<const JoinedTensor> joined);

}  // namespace penstock
