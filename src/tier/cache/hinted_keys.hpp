// SPDX-License-Identifier: Apache-2.0
// The batches that were hinted and not looked up yet, as a bit each: of a key, the hints that have
// it are a mask of 32 bits, in which those of batches that are over are stale until the next sweep.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::tier {

class HintedKeys {
public:
    static constexpr std::uint32_t kHints = 31;  ///< outstanding at once
    static constexpr std::uint32_t kNever = 32;  ///< the distance of a key without a hint

    /// The number of the batch, from 1 on; 0 where it is not taken, as the table would be larger
    /// than `bytes_max`. `masks`: those that callers keep of keys, which are swept with the table.
    /// Throws std::bad_alloc, and then nothing has changed.
    std::uint64_t take(std::span<const std::uint64_t> ids, std::span<std::uint32_t> masks,
                       std::uint64_t bytes_max);

    /// The bit of a batch in masks.
    [[nodiscard]] static std::uint32_t bit_of(std::uint64_t number) { return 1U << (number % 32); }
    /// The hints that have the key, stale ones too.
    [[nodiscard]] std::uint32_t mask_of(std::uint64_t id) const;
    /// How many outstanding batches come before the first that has the key, or kNever.
    [[nodiscard]] std::uint32_t distance(std::uint32_t mask) const;
    [[nodiscard]] bool is_outstanding(std::uint64_t number) const;
    [[nodiscard]] std::uint32_t outstanding() const;
    /// The outstanding batch that has most of these keys, 3 of 4 or more; of equals the first; 0:
    /// none. Looks at 64 of them.
    [[nodiscard]] std::uint64_t like(std::span<const std::uint64_t> ids) const;
    /// The batch is looked up now. Those that were hinted more than 8 before it are given up: their
    /// number is returned.
    std::uint32_t use(std::uint64_t number);
    /// All are given up. Their number.
    std::uint32_t drop();

    [[nodiscard]] std::uint64_t bytes() const;

private:
    struct Key {
        std::uint64_t id = 0;
        std::uint32_t mask = 0;
        bool is_key = false;
    };

    [[nodiscard]] std::size_t place_of(const std::vector<Key>& keys, std::uint64_t id) const;
    [[nodiscard]] std::size_t size_for(std::size_t keys) const;
    [[nodiscard]] bool make_room(std::size_t keys, std::uint64_t bytes_max);
    void end(std::uint64_t number);

    std::vector<Key> keys_;  // open addressing, linear probing; a power of two
    std::size_t used_ = 0;
    std::uint32_t live_ = 0;   // bits of outstanding batches
    std::uint32_t stale_ = 0;  // bits that masks may have of batches that are over
    std::uint64_t first_ = 1;  // the oldest that may be outstanding
    std::uint64_t next_ = 1;
};

}  // namespace penstock::tier
