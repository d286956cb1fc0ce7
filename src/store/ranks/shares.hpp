// SPDX-License-Identifier: Apache-2.0
// What each rank writes of a state, and how that becomes one manifest. Pure.
//
// Tensors with a global_shape are written by the rank that has them (of equal ones, by copy 0).
// Whole tensors are on every rank: small ones are rank 0's, each large one goes to the rank with
// the fewest bytes so far, the largest first. Every rank finds the same answer without a message,
// and finds it again at the next save, so what did not change is linked by whom it was written.
#pragma once

#include "store/manifest/manifest.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

/// The tensors of a state that a rank writes: their numbers, rising.
[[nodiscard]] std::vector<std::size_t> tensors_of_rank(const State& state, std::uint32_t rank,
                                                       std::uint32_t count);
/// Equal for states whose whole tensors are the same, in any order: names, types and shapes.
[[nodiscard]] std::uint64_t hash_of_whole_tensors(const State& state);
/// Equal for states whose small whole tensors, which rank 0 writes, have the same contents, in any
/// order. Only those on the host are read; `look`: as SaveOptions::look, or empty.
[[nodiscard]] std::uint64_t hash_of_small_contents(const State& state, const MemoryLook& look);
/// The metadata of a rank's share: names of tensors of which it has a slice, and writes none. Some
/// other rank has to. `own`: tensors_of_rank().
[[nodiscard]] CheckpointMetadata unwritten_tensors(const State& state,
                                                   std::span<const std::size_t> own);
/// One manifest of all: shards, tensors with their slices, folders and written bytes; the rest is
/// that of the first. Throws kInvalidArgument, with tensor and ranks, where slices overlap, leave
/// a hole, are not of one tensor, or where no rank writes one. `name_of`: of a rank.
[[nodiscard]] Manifest join_shares(std::span<Manifest> shares,
                                   const std::function<std::string(std::uint32_t)>& name_of);

}  // namespace penstock::store
