// SPDX-License-Identifier: Apache-2.0
// The contents of a state's chunks: hashed to see which tensors changed since the last checkpoint
// (compare), and, of those that are written, taken from who wrote them (stream/window_sums.hpp).
// Sums are bound to their place when that is known. Tensors of a GPU are hashed on the host, a
// block at a time (stream/host_windows.hpp).
#pragma once

#include "store/manifest/manifest.hpp"
#include "stream/host_windows.hpp"
#include "stream/progress_clock.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::store {

class ChunkSums {
public:
    /// The tensors outlive it.
    explicit ChunkSums(std::span<const StateTensor> tensors);

    /// changed[i]: whether tensor i differs from `before[i]` (or nullptr), a slice in `shards`.
    /// Uses all cores; stops soon after the first chunk of a tensor that differs. Throws
    /// kCancelled.
    [[nodiscard]] std::vector<bool> compare(std::span<const Slice* const> before,
                                            std::span<const Shard> shards,
                                            stream::ProgressClock& progress);

    /// The contents of all chunks of a tensor that compare() found unchanged.
    [[nodiscard]] std::span<const std::uint64_t> contents(std::size_t tensor) const;
    /// Takes the contents of a tensor that was written. False if they are not those that compare()
    /// found unchanged.
    bool take(std::size_t tensor, std::span<const std::uint64_t> contents);

    /// The sums of a tensor bound to its place in a shard; call it after take().
    [[nodiscard]] std::vector<std::uint64_t> bound(std::size_t tensor, const Shard& shard,
                                                   std::uint64_t begin) const;

private:
    struct Block {  // of one tensor
        std::size_t tensor;
        std::size_t chunk;
        std::size_t chunks;
    };
    /// The bytes of a block, wherever they are.
    [[nodiscard]] ConstMemory memory_of(const Block& block) const;
    bool same(const Block& block, const Slice& before, const Shard& shard);

    std::span<const StateTensor> tensors_;
    stream::HostWindows windows_;           // for tensors of GPUs
    std::vector<std::size_t> first_chunk_;  // of tensor i, in contents_; one more at the end
    std::vector<std::uint64_t> contents_;
    std::vector<Block> blocks_;
    std::vector<bool> changed_;  // by compare()
};

}  // namespace penstock::store
