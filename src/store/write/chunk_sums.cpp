// SPDX-License-Identifier: Apache-2.0
#include "store/write/chunk_sums.hpp"

#include "base/assert.hpp"
#include "base/planted.hpp"
#include "base/start_threads.hpp"
#include "stream/checksum.hpp"

#include <penstock/memory.hpp>

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
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        first_chunk_.push_back(chunks);
        const std::size_t count = chunks_of(tensors[i].data.bytes);
        for (std::size_t at = 0; at < count; at += kBlockChunks) {
            blocks_.push_back({i, at, std::min(kBlockChunks, count - at)});
        }
        chunks += count;
    }
    first_chunk_.push_back(chunks);
    contents_.resize(chunks);
}

ConstMemory ChunkSums::memory_of(const Block& block) const {
    ConstMemory memory = tensors_[block.tensor].data;
    const std::uint64_t begin = block.chunk * kChunkBytes;
    PENSTOCK_ASSERT(begin < memory.bytes);
    memory.data += begin;
    memory.bytes = std::min(block.chunks * kChunkBytes, memory.bytes - begin);
    return memory;
}

bool ChunkSums::same(const Block& block, const Slice& before, const Shard& shard) {
    return windows_.with(memory_of(block), [&](std::span<const std::byte> bytes) {
        for (std::size_t at = 0; at < block.chunks; ++at) {
            const std::size_t i = block.chunk + at;
            const std::uint64_t content = stream::content_hash(chunk_of(bytes, at));
            contents_[first_chunk_[block.tensor] + i] = content;
            const bool looks = i == 0 || !base::planted("stale_shard");
            if (looks && stream::bind(content, shard.id, shard.generation,
                                      before.begin + i * kChunkBytes) != before.sums[i]) {
                return false;
            }
        }
        return true;
    });
}

std::vector<bool> ChunkSums::compare(std::span<const Slice* const> before,
                                     std::span<const Shard> shards,
                                     stream::ProgressClock& progress) {
    PENSTOCK_ASSERT(before.size() == tensors_.size());
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
            const Block& block = blocks_[b];
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
    changed_ = {changed.begin(), changed.end()};
    return changed_;
}

std::span<const std::uint64_t> ChunkSums::contents(std::size_t tensor) const {
    return std::span(contents_).subspan(first_chunk_[tensor],
                                        first_chunk_[tensor + 1] - first_chunk_[tensor]);
}

bool ChunkSums::take(std::size_t tensor, std::span<const std::uint64_t> contents) {
    const std::span<const std::uint64_t> known = this->contents(tensor);
    PENSTOCK_ASSERT(known.size() == contents.size());  // or the sums of the next would change
    const bool same = std::equal(known.begin(), known.end(), contents.begin(), contents.end());
    std::copy(contents.begin(), contents.end(), contents_.begin() + first_chunk_[tensor]);
    return same || changed_[tensor];
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
