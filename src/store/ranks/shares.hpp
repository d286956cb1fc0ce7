// SPDX-License-Identifier: Apache-2.0
// What each rank writes of a state, and how that becomes one manifest. Pure.
//
// Tensors with a global_shape are written by the rank that has them (of equal ones, by copy 0).
// Whole tensors are written once, by a rank that has them: small ones by the first of these, each
// large one by the one with the fewest bytes so far, the largest first. So the next save gives the
// same answer, and what did not change is linked by whom it was written.
#pragma once

#include "store/manifest/manifest.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::store {

/// A whole tensor, and the ranks that have it.
struct WholeTensor {
    std::string_view name;
    std::uint64_t bytes = 0;
    std::vector<bool> on;  ///< each rank; empty: all have it
};

/// Which rank writes each whole tensor, by name; those that are not here, rank 0.
using Writers = std::unordered_map<std::string, std::uint32_t>;
[[nodiscard]] Writers writers_of(std::vector<WholeTensor> tensors, std::uint32_t count);
/// The same where each of `count` ranks has the whole tensors of this state.
[[nodiscard]] Writers writers_of(const State& state, std::uint32_t count);

/// The tensors of a state that a rank writes: their numbers, rising.
[[nodiscard]] std::vector<std::size_t> tensors_of_rank(const State& state, std::uint32_t rank,
                                                       const Writers& writers);
/// One number for each tensor, equal for equal content: the hash of its bytes, or, above 64 KiB, of
/// three pieces of it. 0 for a slice and for memory of a GPU, which are not compared.
[[nodiscard]] std::vector<std::uint64_t> content_samples(const State& state);
/// Equal for states whose whole tensors are the same, in any order: names, types and shapes.
[[nodiscard]] std::uint64_t hash_of_whole_tensors(const State& state);
/// The same of their contents; never 0.
[[nodiscard]] std::uint64_t hash_of_contents(const State& state,
                                             std::span<const std::uint64_t> samples);
/// Whether it is a rank's own part, also where that is all of it: other ranks may have none, or an
/// empty slice.
[[nodiscard]] bool is_part(const StateTensor& tensor);
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
