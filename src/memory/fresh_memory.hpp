// SPDX-License-Identifier: Apache-2.0
// Memory that a load fills and its tensors keep: one mapping in huge pages, laid out so that each
// stretch of the file begins as far into a page as it does in the file (then the device writes
// straight into it), and stretches that adjoin in the file adjoin in memory.
//
//   part   neighbours of some MiB together, or one large stretch. Each tensor in it keeps the part.
//          When the last of them is gone its pages are returned to the system, even if the rest of
//          the mapping is still in use; the mapping itself is freed with its last part
//
// The invariant: a page is returned only when no part that touches it is in use, whatever their
// number and the order in which they go. Parts end anywhere in a page, and one that is shorter than
// a page (a bias between two large weights) shares it with two others. Each part, when it goes,
// returns the pages that only parts which are gone touch; so the last one of a page returns it, for
// a page of 4 KiB that stays would keep all of a huge page. Mapping::discard() is the only place
// that returns pages. It asserts the invariant, also in release builds, with a look at the parts
// that does not share code with the choice of the pages. Memory that a kernel may hold for good
// (LastingMemory) is never returned in part: asserted there, too.
//
// Up to 64 KiB are of the heap instead: a mapping that is made and freed for each small tensor
// costs four times its reading. These begin as far into 64 bytes as they do in the file.
//
// The memory of loads of up to 32 MiB is kept when it is freed, 64 MiB in all, for the next ones:
// else the kernel zeroes as many pages as each of many small files has (1 MiB from the page cache:
// 0.49 ms, and 0.10 ms with pages that are there). It is what malloc does up to that size. Their
// parts, too, go back to the system later: at the next load, or when 64 MiB of them are free.
//
// Parts of one mapping, and not one mapping each: the kernel limits mappings (65,530 per process),
// and gaps between storages of a file are read with them. A part has 1 MiB or more, because up to
// two pages of each stay. Measured with 512 MiB of a .pt in the page cache on 2 cores, compared
// with a mapping that is freed as a whole with its last tensor: loads take the same (128 storages
// of 4 MiB 0.22 s and 0.23 s, 512 of 1 MiB 0.26 and 0.32, 8,192 of 64 KiB 0.65 and 0.88: noise),
// and `del` of two thirds gives 340 MiB back instead of none, in 2 to 15 ms.
#pragma once

#include "base/align.hpp"
#include "base/result.hpp"
#include "memory/block.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace penstock::memory {

/// Bytes of a file that belong together: a storage, or the part of one that is read.
struct Stretch {
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t bytes = 0;
};

class FreshMemory {
public:
    struct Mapping;

    /// A part of a mapping. Destroying it frees its pages, except those that others use, too.
    class Share {
    public:
        Share(std::shared_ptr<Mapping> mapping, std::size_t number, std::span<std::byte> bytes)
            : mapping_(std::move(mapping)), number_(number), bytes_(bytes) {}
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;
        ~Share();
        [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

    private:
        std::shared_ptr<Mapping> mapping_;
        std::size_t number_;
        std::span<std::byte> bytes_;
    };
    struct SharePlace {
        std::shared_ptr<Share> part;  ///< nullptr: an empty stretch
        std::uint64_t offset = 0;     ///< in the part
    };

    /// A load of so much is small: its memory is kept for the next. It may have several mappings.
    static constexpr std::uint64_t kSmallBytes = 32 * base::kMiB;
    /// kOutOfMemory if no memory is left.
    [[nodiscard]] static base::Result<FreshMemory> make(std::span<const Stretch> stretches,
                                                        bool of_small_load = true);

    [[nodiscard]] std::size_t size() const { return places_.size(); }
    /// Its pages are there: it was memory of another load, or is of the heap.
    [[nodiscard]] bool faulted_in() const { return faulted_in_; }
    /// The place of a stretch.
    [[nodiscard]] const SharePlace& place(std::size_t stretch) const { return places_.at(stretch); }
    /// The address of its first byte; nullptr: an empty stretch.
    [[nodiscard]] std::byte* address(std::size_t stretch) const;

private:
    FreshMemory() = default;

    std::vector<SharePlace> places_;
    bool faulted_in_ = false;
};

}  // namespace penstock::memory
