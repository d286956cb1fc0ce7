// SPDX-License-Identifier: Apache-2.0
// Which tensors stay in memory, and how large a slot has to be for the others. Pure arithmetic.
//
// The access is cyclic: each pass uses every unit once, in the same order. So what is read in a
// pass is what does not stay, and memory goes to tensors that stay, less two slots. A slot has to
// hold what is read of any unit: where every unit reads at most `level` bytes, slots of `level`
// bytes are enough. The lowest level that the budget allows is searched for. That takes from the
// largest units first (lm_head), and from equal layers the same share of each.
#pragma once

#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::tier {

/// The tensors of each unit, by number.
using UnitTensors = std::vector<std::vector<std::size_t>>;

struct Residency {
    std::vector<bool> stays;           ///< of each tensor
    std::uint64_t resident_bytes = 0;  ///< upper limit on the memory of those that stay
    std::uint64_t slot_bytes = 0;      ///< upper limit on what is read of one unit; 0: nothing is
    std::uint32_t slots = 0;
    std::uint64_t read_bytes = 0;  ///< in a pass: what does not stay

    [[nodiscard]] std::uint64_t used_bytes() const { return resident_bytes + slots * slot_bytes; }
};

/// Memory of a tensor in a slot, at most: it keeps its place in a page.
[[nodiscard]] std::uint64_t memory_in_slot(std::uint64_t tensor_bytes);

/// Memory of an allocation. The host gives pages as they are written. A GPU gives blocks of 2 MiB
/// to what is larger than 1 MiB, and of 512 bytes to the rest.
[[nodiscard]] std::uint64_t memory_of_block(std::uint64_t bytes, MemoryKind kind);

/// Memory of a tensor that stays, at most: it keeps the residue of its address.
[[nodiscard]] std::uint64_t memory_of_resident(std::uint64_t tensor_bytes, MemoryKind kind);

/// `bytes`: of each tensor. `kind`: of the memory. What uses more than the budget is returned too,
/// with the least memory that works, when nothing else does.
[[nodiscard]] Residency choose_residency(std::span<const std::uint64_t> bytes,
                                         const UnitTensors& units, std::uint64_t memory_bytes,
                                         std::uint32_t slots, MemoryKind kind = MemoryKind::kHost);

}  // namespace penstock::tier
