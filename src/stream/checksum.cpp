// SPDX-License-Identifier: Apache-2.0
#include "stream/checksum.hpp"

#include "base/start_threads.hpp"

// Tensors come from memory, not from a cache: with the 384 bytes ahead that XXH3 fetches by itself
// a core sums 5 GB/s of them, with 2 KiB 8 (and from a cache 17 either way).
#define XXH_PREFETCH_DIST 2048
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace penstock::stream {

namespace {

// Below this the threads cost more than they bring.
constexpr std::size_t kBytesForThreads = std::size_t{4} << 20;

}  // namespace

std::uint64_t content_hash(std::span<const std::byte> bytes) {
    return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t bind(std::uint64_t content, std::string_view shard_id, std::uint64_t generation,
                   std::uint64_t offset) {
    struct {
        std::uint64_t content, generation, offset, id;
    } const place{content, generation, offset, XXH3_64bits(shard_id.data(), shard_id.size())};
    return XXH3_64bits(&place, sizeof place);
}

void content_hashes(std::span<const std::span<const std::byte>> pieces,
                    std::span<std::uint64_t> hashes) {
    std::size_t total = 0;
    for (const auto& piece : pieces) {
        total += piece.size();
    }
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
        for (std::size_t i = next++; i < pieces.size(); i = next++) {
            hashes[i] = content_hash(pieces[i]);
        }
    };
    std::size_t threads = std::min<std::size_t>(std::thread::hardware_concurrency(), pieces.size());
    if (total < kBytesForThreads) {
        threads = 1;
    }
    std::vector<std::jthread> others;
    base::start_threads(others, threads == 0 ? 0 : threads - 1, work);
    work();
}

}  // namespace penstock::stream
