// SPDX-License-Identifier: Apache-2.0
#include "store/chunk_sums.hpp"

#include "base/start_threads.hpp"
#include "stream/checksum.hpp"

#include <penstock/machine.hpp>

#include <algorithm>
#include <atomic>
#include <thread>

namespace penstock::store {

namespace {

// Large enough that handing a block out costs nothing, small enough that progress is reported.
constexpr std::size_t kBlockChunks = 16;  // 4 MiB
// Below this, threads cost more than they bring.
constexpr std::uint64_t kBytesForThreads = std::uint64_t{8} << 20;
// step() hashes small tensors until it has had so many bytes.
constexpr std::uint64_t kStepBytes = std::uint64_t{4} << 20;

std::size_t chunks_of(std::uint64_t bytes) {
    return static_cast<std::size_t>((bytes + kChunkBytes - 1) / kChunkBytes);
}

}  // namespace

ChunkSums::ChunkSums(std::span<const StateTensor> tensors) : tensors_(tensors) {
    std::size_t chunks = 0;
    first_chunk_.reserve(tensors.size() + 1);
    first_block_.reserve(tensors.size() + 1);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        first_chunk_.push_back(chunks);
        first_block_.push_back(blocks_.size());
        const std::size_t count = chunks_of(tensors[i].data.bytes);
        for (std::size_t at = 0; at < count; at += kBlockChunks) {
            blocks_.push_back({i, at, std::min(kBlockChunks, count - at), false});
        }
        chunks += count;
    }
    first_chunk_.push_back(chunks);
    first_block_.push_back(blocks_.size());
    contents_.resize(chunks);
}

std::span<const std::byte> ChunkSums::chunk(std::size_t tensor, std::size_t index) const {
    const std::span<const std::byte> data = tensors_[tensor].data.span();
    const std::size_t begin = index * kChunkBytes;
    return data.subspan(begin, std::min<std::size_t>(kChunkBytes, data.size() - begin));
}

void ChunkSums::hash(Block& block) {
    for (std::size_t i = block.chunk; i < block.chunk + block.chunks; ++i) {
        contents_[first_chunk_[block.tensor] + i] = stream::content_hash(chunk(block.tensor, i));
    }
    block.done = true;
}

bool ChunkSums::same(Block& block, const Slice& before, const Shard& shard) {
    for (std::size_t i = block.chunk; i < block.chunk + block.chunks; ++i) {
        const std::uint64_t content = stream::content_hash(chunk(block.tensor, i));
        contents_[first_chunk_[block.tensor] + i] = content;
        if (stream::bind(content, shard.id, shard.generation, before.begin + i * kChunkBytes) !=
            before.sums[i]) {
            return false;
        }
    }
    block.done = true;
    return true;
}

std::vector<bool> ChunkSums::compare(std::span<const Slice* const> before,
                                     std::span<const Shard> shards,
                                     stream::ProgressClock& progress) {
    std::vector<std::atomic<bool>> changed(tensors_.size());
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const bool known =
            before[i] != nullptr && before[i]->sums.size() == chunks_of(tensors_[i].data.bytes);
        changed[i].store(!known, std::memory_order_relaxed);
        bytes += known ? tensors_[i].data.bytes : 0;
    }
    std::atomic<std::size_t> next{0};
    std::atomic<bool> stop{false};
    const auto work = [&](bool ours) {
        for (std::size_t b = next++; b < blocks_.size() && !stop.load(); b = next++) {
            Block& block = blocks_[b];
            std::atomic<bool>& differs = changed[block.tensor];
            if (!differs.load(std::memory_order_relaxed)) {
                const Slice& slice = *before[block.tensor];
                if (!same(block, slice, shards[slice.shard])) {
                    differs.store(true, std::memory_order_relaxed);
                }
            }
            if (ours) {
                progress.tick();
            }
        }
    };
    {
        std::vector<std::jthread> others;
        const unsigned cores = bytes < kBytesForThreads ? 1 : usable_processors();
        base::start_threads(others, cores - 1, [&work] { work(false); });
        try {
            work(true);
        } catch (...) {
            stop.store(true);
            throw;
        }
    }
    return {changed.begin(), changed.end()};
}

void ChunkSums::want(std::span<const std::size_t> tensors) {
    for (const std::size_t i : tensors) {
        for (std::size_t b = first_block_[i]; b < first_block_[i + 1]; ++b) {
            if (!blocks_[b].done) {
                wanted_.push_back(b);
            }
        }
    }
}

bool ChunkSums::step() {
    for (std::uint64_t bytes = 0; next_ < wanted_.size() && bytes < kStepBytes; ++next_) {
        Block& block = blocks_[wanted_[next_]];
        hash(block);
        bytes += block.chunks * kChunkBytes;
    }
    return next_ < wanted_.size();
}

std::vector<std::uint64_t> ChunkSums::bound(std::size_t tensor, const Shard& shard,
                                            std::uint64_t begin) const {
    const std::size_t first = first_chunk_[tensor];
    std::vector<std::uint64_t> sums(first_chunk_[tensor + 1] - first);
    for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] =
            stream::bind(contents_[first + i], shard.id, shard.generation, begin + i * kChunkBytes);
    }
    return sums;
}

}  // namespace penstock::store
