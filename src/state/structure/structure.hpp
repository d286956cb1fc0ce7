// SPDX-License-Identifier: Apache-2.0
// Converts between a state as a tree of values and a state as a store keeps it: named tensors, and
// the rest as JSON (a flat list of values that number one another, as in ValueTree, so depth costs
// nothing and a value in two places is one value).
//
// A storage becomes a tensor of that name, dtype and shape if one whole contiguous tensor covers
// it, or if only a part is used, by one contiguous tensor. Any other storage (views that overlap,
// strides) becomes its bytes: dtype "U8", name "<first tensor's name>.storage".
#pragma once

#include "format/value.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

/// `storages[i]`: the bytes of storage i of the tree. Throws kInvalidArgument with the place in the
/// state for a value that JSON or safetensors cannot hold. The structure is decoded again and
/// compared with the tree (check_readback); `State::structure_sum` records that. `readbacks`: how
/// many times; only a benchmark changes it.
[[nodiscard]] State state_of(const format::ValueTree& tree,
                             std::span<const std::span<const std::byte>> storages,
                             int readbacks = 1);

/// Decodes the structure of the state and compares it with the original tree: values by type, order
/// and sharing; each tensor by its type, shape, strides and the address of its elements. No data is
/// read. Throws kInvalidArgument with the place of the first difference.
void check_readback(const format::ValueTree& tree,
                    std::span<const std::span<const std::byte>> storages, const State& state);

/// A tree whose storages are not filled yet: storage i gets the bytes of the tensor `sources[i]`.
struct Skeleton {
    format::ValueTree tree;
    std::vector<std::string> sources;
};

/// Throws kDamaged for text that state_of() did not write, or that does not match the tensors. With
/// a structure of "null" the tree is a dict of all tensors by name.
[[nodiscard]] Skeleton skeleton_of(std::string_view structure,
                                   std::span<const CheckpointTensor> tensors);

/// A tensor that a structure may refer to.
struct StoredTensor {
    std::string_view name;
    std::string_view dtype;
    std::span<const std::uint64_t> shape;
    std::uint64_t bytes = 0;
};
[[nodiscard]] Skeleton skeleton_of(std::string_view structure,
                                   std::span<const StoredTensor> tensors);
/// Empty, or the reason why no state can be made of it, and none saved: what was not read is one.
[[nodiscard]] std::string wrong_structure(std::string_view structure,
                                          std::span<const StoredTensor> tensors);

}  // namespace penstock::state
