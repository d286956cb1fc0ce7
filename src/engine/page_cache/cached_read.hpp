// SPDX-License-Identifier: Apache-2.0
// Reads from the page cache, as copy threads and waiting callers do them: a call of the kernel and
// a copy. Nothing waits for a device but where the cache has changed since it was asked.
//
// A request may have many extents (Draft::extents). What adjoins is one call, into the caller's
// memory; small extents with little between them are one call into a scratch area, from which they
// are copied: a call costs more than the bytes between.
#pragma once

#include "engine/extents.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"

#include <cstdint>
#include <span>

namespace penstock::engine {

/// Extents of fewer bytes share a call where no more than the gap is between them. A call costs
/// 0.3 us, which copies 3 KiB.
inline constexpr std::uint64_t kCachedSmallBytes = 2 << 10;
inline constexpr std::uint64_t kCachedGapBytes = 2 << 10;

struct CachedRead {
    std::int64_t result = 0;         ///< wanted bytes that came; -errno where none did
    std::uint32_t cached_bytes = 0;  ///< of them, from the page cache
    std::uint64_t offset = 0;        ///< where the file ended, or could not be read
};

/// What is not there at once is read through the cache all the same: the kernel began to when it
/// was asked.
[[nodiscard]] CachedRead read_cached(os::File& file, std::uint64_t offset,
                                     std::span<const iovec> pieces);
/// The same for the extents of a draft that has many, from their `done_bytes`-th byte on.
[[nodiscard]] CachedRead read_cached(os::File& file, const Extents& extents, const Draft& draft,
                                     std::uint32_t done_bytes);

/// Extents [begin, end), all of one file, as long as all of them are there: false where one is not,
/// and then some of their memory may have been read.
[[nodiscard]] bool read_where_cached(os::File& file, const Extents& extents, std::uint64_t begin,
                                     std::uint64_t end);

}  // namespace penstock::engine
