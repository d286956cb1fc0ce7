// SPDX-License-Identifier: Apache-2.0
// The tensors of a state and the storages that they lie in.
#pragma once

#include "format/value.hpp"
#include "slices.hpp"
#include "storage_memory.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace penstock::python {

/// The structure knows addresses alone: sets which of them are of GPUs, and which are copies (the
/// data of the tree is). Gives the storage of each tensor, or kNoStorage. The memory of parts may
/// lie inside of other storages: split_slices() places those.
[[nodiscard]] std::vector<std::size_t> place_tensors(penstock::State& state,
                                                     const format::ValueTree& tree,
                                                     const std::vector<StorageMemory>& storages,
                                                     std::span<const SlicedTensor> sliced);

}  // namespace penstock::python
