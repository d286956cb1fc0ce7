// SPDX-License-Identifier: Apache-2.0
// The tensors of a source, read one at a time: those in slices have to be joined in memory, and the
// memory for all of them may not be there.
#pragma once

#include "state/source.hpp"

#include <penstock/state_file.hpp>

#include <cstdint>

namespace penstock::cli {

/// Whether a tensor lies in several pieces of its files, so that it cannot be mapped.
[[nodiscard]] bool has_slices(const state::Source& source);

/// All of its tensors, as stored, checked where the source checks its reads. `structure`: with that
/// of the source. Throws kOutOfMemory, with the tensor, if one has more than `memory` bytes. The
/// source outlives it.
[[nodiscard]] TensorStream one_by_one(state::Source& source, bool structure, std::uint64_t memory);

}  // namespace penstock::cli
