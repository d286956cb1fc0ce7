// SPDX-License-Identifier: Apache-2.0
// What is known of the page cache's share of a file.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

namespace penstock::os {

/// Of a stretch of a file.
struct CachedPages {
    std::uint64_t pages = 0;  ///< in the page cache
    std::uint64_t dirty = 0;  ///< of them, not on the device yet
};

class File;

/// cachestat(2) of [offset, offset + bytes) of an open file: 0, or an errno.
[[nodiscard]] int cachestat(int fd, std::uint64_t offset, std::uint64_t bytes, CachedPages& found);
/// Empty, or why this kernel does not answer it.
[[nodiscard]] std::string cachestat_refusal();
/// How reads of an open file use the page cache, and why; for people.
[[nodiscard]] std::string page_cache_use(const File& file);

/// What the small reads of one open file have found so far, so that the next one need not ask. Any
/// thread; a race costs a question or a way, never a byte.
class CacheHistory {
public:
    /// Notes a read; true where it and the few before it each began where the last one ended.
    [[nodiscard]] bool in_sequence(std::uint64_t offset, std::uint64_t bytes) {
        const bool follows = next_offset_.load(kRelaxed) == offset;
        next_offset_.store(offset + bytes, kRelaxed);
        const std::uint32_t before = in_a_row_.load(kRelaxed);
        if (!follows) {
            if (before != 0) {
                in_a_row_.store(0, kRelaxed);
            }
            return false;
        }
        if (before < kSequence) {
            in_a_row_.store(before + 1, kRelaxed);
        }
        return before >= kSequence;
    }

    /// Without a note: what is read from there on is likely in the cache.
    [[nodiscard]] bool expects_cached(std::uint64_t offset) const {
        return warm() ||
               (next_offset_.load(kRelaxed) == offset && in_a_row_.load(kRelaxed) >= kSequence);
    }

    /// The last read that looked found its bytes in the cache.
    [[nodiscard]] bool warm() const { return warm_.load(kRelaxed); }
    /// True where this read goes without a question, because those before it were cold.
    [[nodiscard]] bool skip() {
        const std::uint32_t left = skip_.load(kRelaxed);
        if (left != 0) {
            skip_.store(left - 1, kRelaxed);
        }
        return left != 0;
    }

    void found_warm() {
        warm_.store(true, kRelaxed);
        pause_.store(0, kRelaxed);
    }
    /// The pause until the next question doubles, up to `pause_max` reads.
    void found_cold(std::uint32_t pause_max) {
        const std::uint32_t pause = pause_.load(kRelaxed);
        warm_.store(false, kRelaxed);
        skip_.store(pause, kRelaxed);
        pause_.store(std::min(pause * 2 + 1, pause_max), kRelaxed);
    }
    /// Bytes that were taken for cached were not: the next read asks.
    void missed() {
        warm_.store(false, kRelaxed);
        skip_.store(0, kRelaxed);
    }

    /// The kernel tells nobody like us what is cached.
    [[nodiscard]] bool refused() const { return refused_.load(kRelaxed); }
    void note_refusal() { refused_.store(true, kRelaxed); }

private:
    static constexpr auto kRelaxed = std::memory_order_relaxed;
    static constexpr std::uint32_t kSequence = 3;

    std::atomic<std::uint64_t> next_offset_{UINT64_MAX};
    std::atomic<std::uint32_t> in_a_row_{0};
    std::atomic<std::uint32_t> skip_{0};   ///< reads that still go without a question
    std::atomic<std::uint32_t> pause_{0};  ///< of the next cold answer
    std::atomic<bool> warm_{false};
    std::atomic<bool> refused_{false};
};

}  // namespace penstock::os
