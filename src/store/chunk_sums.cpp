// SPDX-License-Identifier: Apache-2.0
#include "store/chunk_sums.hpp"

#include "base/start_threads.hpp"
#include "stream/checksum.hpp"

#include <penstock/machine.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
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

std::span<const std::byte> chunk_of(std::span<const std::byte> block, std::size_t index) {
    const std::size_t begin = index * kChunkBytes;
    return block.subspan(begin, std::min<std::size_t>(kChunkBytes, block.size() - begin));
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

ConstMemory ChunkSums::memory_of(const Block& block) const {
    ConstMemory memory = tensors_[block.tensor].data;
    const std::uint64_t begin = block.chunk * kChunkBytes;
    memory.data += begin;
    memory.bytes = std::min(block.chunks * kChunkBytes, memory.bytes - begin);
    return memory;
}

void ChunkSums::hash(Block& block) {
    windows_.with(memory_of(block), [&](std::span<const std::byte> bytes) {
        for (std::size_t i = 0; i < block.chunks; ++i) {
            contents_[first_chunk_[block.tensor] + block.chunk + i] =
                stream::content_hash(chunk_of(bytes, i));
        }
    });
    block.done = true;
}

bool ChunkSums::same(Block& block, const Slice& before, const Shard& shard) {
    block.done = windows_.with(memory_of(block), [&](std::span<const std::byte> bytes) {
        for (std::size_t at = 0; at < block.chunks; ++at) {
            const std::size_t i = block.chunk + at;
            const std::uint64_t content = stream::content_hash(chunk_of(bytes, at));
            contents_[first_chunk_[block.tensor] + i] = content;
            if (stream::bind(content, shard.id, shard.generation, before.begin + i * kChunkBytes) !=
                before.sums[i]) {
                return false;
            }
        }
        return true;
    });
    return block.done;
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
        std::exception_ptr failure;  // of another thread: bytes of a GPU that could not be had
        std::mutex failure_mutex;
        {
            std::vector<std::jthread> others;
            const unsigned cores = bytes < kBytesForThreads ? 1 : usable_processors();
            base::start_threads(others, cores - 1, [&] {
                try {
                    work(false);
                } catch (...) {
                    stop.store(true);
                    const std::lock_guard guard(failure_mutex);
                    failure = std::current_exception();
                }
            });
            try {
                work(true);
            } catch (...) {
                stop.store(true);
                throw;
            }
        }
        if (failure) {
            std::rethrow_exception(failure);
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
