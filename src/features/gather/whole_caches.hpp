// SPDX-License-Identifier: Apache-2.0
// Caches in which any row may have any slot, to hold those in sets against. Rows are numbered from
// 0 on without gaps. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::features {

/// A batch, in the order of its uses: rows that are there first, then the others.
class WholeCache {
public:
    static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

    WholeCache() = default;
    WholeCache(const WholeCache&) = delete;
    WholeCache& operator=(const WholeCache&) = delete;
    virtual ~WholeCache() = default;

    [[nodiscard]] virtual bool has(std::uint32_t row) const = 0;
    /// `next`: the number of the next batch that has the row, or kNever.
    virtual void use(std::uint32_t row, std::uint64_t next) = 0;
    /// The row is not there.
    virtual void add(std::uint32_t row, std::uint64_t next) = 0;
};

/// "fifo", "lru", "s3fifo_whole" or "belady"; null for another name.
[[nodiscard]] std::unique_ptr<WholeCache> make_whole_cache(std::string_view name,
                                                           std::uint64_t slots, std::size_t rows,
                                                           std::size_t batches);

}  // namespace penstock::features
