// SPDX-License-Identifier: Apache-2.0
// A few words of each tensor, as they were at the call of a save that reads the tensors later.
//
// Sums are made around each window of a write. What was changed before the first of them, and stays
// until the last, has one sum: an average of weights that is swapped in for an evaluation would be
// saved in place of the weights. Such a change is of all of a tensor, so a few of its words show
// it.
#pragma once

#include <penstock/checkpoint.hpp>
#include <penstock/memory.hpp>
#include <penstock/types.hpp>

#include <span>

namespace penstock::stream {

/// A look that also compares words of the memory, on the host only, with what they are now. Number
/// i of a tensor is memory[i]. It stays where it is, and readable, as long as `look` says so.
[[nodiscard]] MemoryLook with_samples(MemoryLook look, std::span<const ConstMemory> memory);

}  // namespace penstock::stream
