// SPDX-License-Identifier: Apache-2.0
// Tensors of a state of which this process has a part: DTensors, and penstock.Slice.
//
// The tree of the state has the whole tensor, so its structure is the same on all ranks. Where the
// memory of that would be, it has addresses that nothing has; split_slices() puts the parts there.
#pragma once

#include "format/torch_types.hpp"
#include "format/value.hpp"
#include "nanobind.hpp"
#include "storage_memory.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::python {

/// A box of a tensor, whose elements are row-major in the memory of the part.
struct SlicePiece {
    std::vector<std::uint64_t> offset;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0;  ///< elements into that memory
};

/// The part of a tensor that is the only one in its storage of the tree.
struct SlicedTensor {
    std::uint32_t storage = 0;
    std::uint32_t copy = 0;            ///< StateTensor::copy
    std::vector<std::uint64_t> shape;  ///< of the whole tensor
    std::vector<SlicePiece> pieces;
};

/// A HeldPart of penstock._state.slices.
struct HeldPart {
    nb::object local;           ///< contiguous, on the host or a CUDA GPU
    format::TensorValue whole;  ///< alone in its storage; not yet with a type and that storage
    std::uint64_t elements = 0;
    SlicedTensor sliced;   ///< not yet with its storage
    bool is_made = false;  ///< for this save
    nb::object tie;        ///< equal for parts that are one tensor
};
[[nodiscard]] HeldPart held_part(nb::handle part);

/// The memory of each storage of a tree, for state::state_of(), which reads none of it.
[[nodiscard]] std::vector<std::span<const std::byte>> spans_of(
    const format::ValueTree& tree, const std::vector<StorageMemory>& storages,
    std::span<const SlicedTensor> sliced);

/// Puts their parts in the place of tensors that spans_of() has made up, and their storages into
/// `of`. ValueError for a tensor that has no elements to cut, and, `alone`, for parts that are not
/// the whole tensor: nobody has the rest.
void split_slices(penstock::State& state, std::vector<std::size_t>& of,
                  const format::ValueTree& tree, const std::vector<StorageMemory>& storages,
                  std::span<const SlicedTensor> sliced, bool alone);

}  // namespace penstock::python
