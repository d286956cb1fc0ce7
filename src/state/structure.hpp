// SPDX-License-Identifier: Apache-2.0
// Between a state as a tree of values and a state as a store keeps it: named tensors, and the rest
// as JSON (a flat list of values that number one another, as in ValueTree, so depth costs nothing
// and what stands in two places is one value).
//
// A storage that one whole contiguous tensor covers, or a part of which one contiguous tensor is
// all that is looked at, becomes a tensor of that name, dtype and shape. Any other storage (views
// that overlap, strides) becomes its bytes: dtype "U8", name "<first tensor's name>.storage".
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
/// state for what JSON or safetensors cannot hold. The structure was decoded again and compared
/// with the tree (check_readback), which `State::structure_sum` says. `readbacks`: how many times,
/// which only a benchmark wants otherwise.
[[nodiscard]] State state_of(const format::ValueTree& tree,
                             std::span<const std::span<const std::byte>> storages,
                             int readbacks = 1);

/// Decodes the structure of the state and compares it with the tree that it was made of: values by
/// type, order and what is shared; each tensor by its type, shape, strides and the address of its
/// elements. No data is read. Throws kInvalidArgument with the place of what would not come back.
void check_readback(const format::ValueTree& tree,
                    std::span<const std::span<const std::byte>> storages, const State& state);

/// A tree whose storages are yet to be filled: storage i with the bytes of the tensor `sources[i]`.
struct Skeleton {
    format::ValueTree tree;
    std::vector<std::string> sources;
};

/// Throws kDamaged: what state_of() did not write, or does not go with the tensors. With a
/// structure of "null" the tree is a dict of all tensors by name.
[[nodiscard]] Skeleton skeleton_of(std::string_view structure,
                                   std::span<const CheckpointTensor> tensors);

/// A tensor that a structure may look into.
struct StoredTensor {
    std::string_view name;
    std::string_view dtype;
    std::span<const std::uint64_t> shape;
    std::uint64_t bytes = 0;
};
[[nodiscard]] Skeleton skeleton_of(std::string_view structure,
                                   std::span<const StoredTensor> tensors);
/// Empty, or why no state can be made of it.
[[nodiscard]] std::string wrong_structure(std::string_view structure,
                                          std::span<const StoredTensor> tensors);

}  // namespace penstock::state
