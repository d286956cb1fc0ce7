// SPDX-License-Identifier: Apache-2.0
// Ways of a request whose caller waits for it: who may go which, and up to which size. The first
// that fits is taken; where none fits, or one does not move every byte, the transfer is handed to
// the threads of its domain, which do all of it and say what is wrong.
//
//   way          what goes it                                  up to              file
//   at once      one extent of an open file, no transfer:                         at_once.cpp
//     cached       a read whose last ones were cached          inline_bytes_max
//     in memory    a read of a file system in memory           inline_bytes_max
//     direct       an aligned read, the last ones not cached   inline_bytes_max
//     written      a write of cache `auto`, not synced         a block
//     by a copy    each of these, of a device's memory         kDeviceBytesMax
//   copied       a read of a file or of a list, all of it in   kCopied...         copy_cached.cpp
//                the page cache
//   inline       a transfer of one file, on a lent channel: inline.cpp
//     small        a read or write                             inline_bytes_max, kInlineExtentsMax
//     copied       a small write (is_small_write)              kInlineCachedExtentsMax
//     as opened    each small file of a list of paths          inline_bytes_max, kInlineExtentsMax
//
// Conditions of all: the domain has threads (no simulation), no depth limit, and a lent channel is
// free. At its device nothing is before it, but for what is cached, which takes nothing of the
// device.
#pragma once

#include "base/align.hpp"

#include <cstdint>

namespace penstock::engine::ways {

/// A device's memory: SmallCopy has so much.
constexpr std::uint64_t kDeviceBytesMax = 64 * base::kKiB;

// Copied: from there on several threads copy sooner, from 4 MiB on, and later where each call
// brings no more than a page or two, and costs more than its bytes.
constexpr std::uint64_t kCopiedBytesMax = 4 * base::kMiB + 64 * base::kKiB;  ///< with a header
constexpr std::uint64_t kCopiedSmallBytesMax = 8 * base::kMiB;
constexpr std::uint64_t kCopiedSmallBytes = 8 * base::kKiB;  ///< an extent, on average
constexpr std::uint64_t kCopiedExtentsMax = 2048;

[[nodiscard]] constexpr bool is_copied(std::uint64_t bytes, std::uint64_t extents) {
    const bool is_small = bytes <= extents * kCopiedSmallBytes;
    return extents <= kCopiedExtentsMax &&
           bytes <= (is_small ? kCopiedSmallBytesMax : kCopiedBytesMax);
}

constexpr std::uint64_t kInlineExtentsMax = 16;
constexpr std::uint64_t kInlineCachedExtentsMax = 2048;  ///< of a small write

/// Whether a write goes through the page cache whole. A copy serves a caller who waits for each
/// write sooner than a device, which takes longer still for scattered pages. Who asks for a sync
/// waits for the device anyway, which a copy of more than kSyncedBytesMax delays.
[[nodiscard]] constexpr bool is_small_write(std::uint64_t bytes, std::uint64_t extents, bool sync,
                                            std::uint64_t block_bytes) {
    constexpr std::uint64_t kSyncedBytesMax = 64 * base::kKiB;
    constexpr std::uint64_t kPageOrTwo = 8 * base::kKiB;
    constexpr std::uint64_t kBlocksOfPages = 8;
    if (sync) {
        return extents == 1 && bytes <= kSyncedBytesMax;
    }
    const bool is_of_pages = extents > 1 && bytes <= extents * kPageOrTwo;
    return bytes <= block_bytes * (is_of_pages ? kBlocksOfPages : 1);
}

}  // namespace penstock::engine::ways
