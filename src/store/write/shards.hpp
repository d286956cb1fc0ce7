// SPDX-License-Identifier: Apache-2.0
// Groups tensors into shards, and finds the shards that need not be written. Pure.
//
//   linked    a shard of the last checkpoint that has the same tensors, none of them changed
//   kept      a shard all of whose tensors changed stays together: they changed together before
//   apart     in any other case, changed tensors go into new shards and unchanged ones into others,
//             each with those that changed last in the same generation
//
// Slices of one tensor go into different shards: each has the tensor's name there, and a name
// occurs once in a file.
//
// So tensors that change together end up together, and a state with a part that rests settles: from
// the second change on, the resting part is linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::store {

inline constexpr std::size_t kNoShard = SIZE_MAX;
inline constexpr std::size_t kWhole = SIZE_MAX;

/// A tensor of the state, with its history in the last checkpoint.
struct TensorHistory {
    std::uint64_t bytes = 0;
    std::size_t shard = kNoShard;  ///< of the last checkpoint
    bool changed = true;
    std::uint64_t changed_before = 0;  ///< generation of the change before this one; 0: new
    std::size_t slice_of = kWhole;     ///< equal for slices of one tensor
};

/// A shard of the last checkpoint.
struct ShardHistory {
    std::size_t tensors = 0;  ///< slices in it
    bool linkable = false;
};

struct ShardPlan {
    std::vector<std::size_t> tensors;  ///< of the state, in its order
    std::uint64_t bytes = 0;           ///< of tensors
    std::size_t linked = kNoShard;     ///< the shard of the last checkpoint that it is
};

/// Every tensor in one shard; linked ones first. `shard_bytes`: the approximate size of a shard.
[[nodiscard]] std::vector<ShardPlan> plan_shards(std::span<const TensorHistory> tensors,
                                                 std::span<const ShardHistory> last,
                                                 std::uint64_t shard_bytes);

}  // namespace penstock::store
