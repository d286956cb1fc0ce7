// SPDX-License-Identifier: Apache-2.0
// The contents of a state's chunks, each hashed once: first as many as show whether a tensor
// changed, the rest while the tensors are written. Sums are bound to their place when that is
// known. Tensors of a GPU are hashed on the host, a block at a time (stream/host_windows.hpp).
#pragma once

#include "store/manifest.hpp"
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

    /// Sets the tensors that step() hashes, in this order.
    void want(std::span<const std::size_t> tensors);
    /// Hashes some MiB of the wanted tensors; false when all is done.
    bool step();

    /// The sums of a tensor bound to its place in a shard; call it after all are hashed.
    [[nodiscard]] std::vector<std::uint64_t> bound(std::size_t tensor, const Shard& shard,
                                                   std::uint64_t begin) const;

private:
    struct Block {  // of one tensor
        std::size_t tensor;
        std::size_t chunk;
        std::size_t chunks;
        bool done;
    };
    /// The bytes of a block, wherever they are.
    [[nodiscard]] ConstMemory memory_of(const Block& block) const;
    void hash(Block& block);
    bool same(Block& block, const Slice& before, const Shard& shard);

    std::span<const StateTensor> tensors_;
    stream::HostWindows windows_;           // for tensors of GPUs
    std::vector<std::size_t> first_chunk_;  // of tensor i, in contents_; one more at the end
    std::vector<std::size_t> first_block_;  // likewise, in blocks_
    std::vector<std::uint64_t> contents_;
    std::vector<Block> blocks_;
    std::vector<std::size_t> wanted_;  // blocks
    std::size_t next_ = 0;             // of wanted_
};

}  // namespace penstock::store
