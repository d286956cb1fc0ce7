// SPDX-License-Identifier: Apache-2.0
// Plans a save, before a byte is written: which shards are linked, and which are written with what
// in them. Pure: the state of the disk comes in as values.
#pragma once

#include "format/safetensors.hpp"
#include "store/manifest/manifest.hpp"
#include "store/write/shards.hpp"
#include "stream/window_sums.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

/// The checkpoint that shards may be linked from; empty path: there is no such checkpoint.
struct LastCheckpoint {
    Manifest manifest;
    std::string path;
    std::uint64_t hash = 0;  ///< stream::content_hash() of its manifest's text
};

/// A shard of the last checkpoint, as it is on disk now.
struct ShardThere {
    bool linkable = false;
    std::uint32_t folder = 0;  ///< index of the store's folders
    std::string edited;        ///< its path, where another program wrote to it; then not linkable
};

/// A shard of the new checkpoint.
struct SavePart {
    std::vector<std::size_t> tensors;  ///< of the state, in its order
    std::uint64_t bytes = 0;           ///< of tensors
    std::size_t linked = kNoShard;     ///< the shard of the last checkpoint that it is
    std::uint32_t folder = 0;          ///< index of the store's folders; of a written shard:
                                       ///< place_files()
    std::string file;
    std::unique_ptr<format::safetensors::Layout> layout;  ///< only of a shard that is written

    [[nodiscard]] bool is_written() const { return linked == kNoShard; }
};

/// The share of one rank in a checkpoint of several.
struct ShareOfRank {
    /// The file in the checkpoint's folder that gets its manifest, instead of index and manifest.
    /// Empty: it is the whole checkpoint.
    std::string name;
    std::uint64_t shards_after = 0;  ///< the numbers of new shards come after this one
};

struct SavePlan {
    const State& state;  ///< outlives the plan, as `last` does
    const LastCheckpoint& last;
    std::uint64_t generation = 0;
    std::uint64_t step = 0;
    bool pinned = false;
    CheckpointMetadata metadata = {};
    std::vector<format::safetensors::Tensor> entries;  ///< one per tensor, as its shard has it
    std::vector<const Slice*> before;                  ///< one per tensor: its slice in `last`, or
                                                       ///< nullptr
    std::vector<bool> changed;                         ///< one per tensor
    std::vector<SavePart> parts;                       ///< linked ones first
    stream::Watch watch = {};                          ///< its look has numbers of tensors
    std::string note;                                  ///< empty, or anything out of the ordinary
    std::string store = {};                            ///< the identity of the store
    std::int64_t saved_unix_ns = 0;
    ShareOfRank share = {};
    bool has_places = false;  ///< written shards say where their tensors begin (stock_places())
};

/// For each tensor, the slice of `last` that has the same name, type and place, or nullptr. A slice
/// that has not its tensor's name in its shard is none: with others that have it, stock readers
/// would find half of the tensor, and say nothing.
[[nodiscard]] std::vector<const Slice*> find_before(const State& state, const Manifest& last);

/// Fills parts, note and has_places from the rest. `there`: one per shard of the last checkpoint.
/// `folders`: their number in the store.
void plan_parts(SavePlan& plan, std::span<const ShardThere> there, std::uint64_t shard_bytes,
                std::size_t folders);

/// A part that cannot be linked is written.
void write_instead(SavePlan& plan, SavePart& part);

}  // namespace penstock::store
