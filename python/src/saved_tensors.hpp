// SPDX-License-Identifier: Apache-2.0
// The tensors of a state and the storages that they lie in.
#pragma once

#include "format/value.hpp"
#include "storage_memory.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <vector>

namespace penstock::python {

/// The structure knows addresses alone: sets which of them are of GPUs, and which are copies (the
/// data of the tree is). Gives the storage of each tensor, or kNoStorage.
[[nodiscard]] std::vector<std::size_t> place_tensors(penstock::State& state,
                                                     const format::ValueTree& tree,
                                                     const std::vector<StorageMemory>& storages);

}  // namespace penstock::python
