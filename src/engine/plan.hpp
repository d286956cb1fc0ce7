// SPDX-License-Identifier: Apache-2.0
// The plan of one part of a transfer: a generator of fixed size that yields its next request and
// allocates nothing. Pure: no kernel, no clock, no lock.
//
// Extents that follow one another in the list and in the file are a run; alignment is asked of the
// run, not of its extents.
//
//   read, direct    the run is widened to the read alignment. Where address, offset and length
//   allow
//                   it a request goes straight to the caller's memory, gathering several extents;
//                   elsewhere it passes through a slot. An unaligned start in front of a long
//                   straight stretch gets a small slot request of its own, so that the stretch
//                   stays straight.
//   read over gaps  small extents that lie near one another, in the list and in the file, overlap
//                   or share a block of the device are one request through a slot. What lies
//                   between them is dropped there. See read_over_gaps().
//   read, cached    extents that follow one another in the file, in the order of the list, are one
//                   request without a slot: see cached_read.hpp.
//   write, direct   the run is cut at Geometry::edge_align() into a middle, written directly, and
//   two
//                   ends, written through the buffered descriptor in a second phase, when the
//                   middle is through.
//                   Where a read may be short, nothing from the block on in which the file ends
//                   goes straight: a device moves whole blocks, and what lies behind the end is the
//                   caller's. (A file that is cut while it is read ends earlier than was known.)
//   write, cached   a short run of which a part would be an end is an end, whole, where the policy
//                   of the file is auto; so is each run of a small write that a caller waits for.
//   buffered        no alignment, straight.
//
// Extents may be of memory of several places (the host, devices). A run ends where the place
// changes. What is of a device goes straight where a DevicePath takes it, it is not in the page
// cache, and it is long and aligned, in one extent a request; else each request for it has a slot,
// also from the page cache and on the buffered path.
#pragma once

#include "base/align.hpp"
#include "base/assert.hpp"
#include "engine/extents.hpp"
#include "engine/page_cache/cache_lookup.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

namespace penstock::engine {

class DevicePath;

using Files = std::span<const std::shared_ptr<os::File>>;

class Plan {
public:
    Plan() = default;
    /// The bytes of `extents` in [begin, end) whose file is of `group`, where `groups` has the
    /// group of each file from `first_file` on (empty: all files). What is referred to must outlive
    /// the plan.
    Plan(const Extents& extents, Files files, Op op, Position begin, Position end,
         std::span<const std::uint32_t> groups = {}, std::uint32_t group = 0,
         std::uint32_t first_file = 0);
    /// Reads may be short: File::size_seen() is where each file ended.
    void allow_short() { allow_short_ = true; }
    /// A read's request costs the device as much as so many bytes, so that fewer between two
    /// extents are read over. 0: only adjoining extents are one request.
    void read_over_gaps(std::uint64_t gap_bytes) { gap_bytes_ = gap_bytes; }

    /// Some extents are of a device's memory; else nobody looks whose it is. `path`: what it takes
    /// goes straight; nullptr: nothing does.
    void expect_devices(DevicePath* path = nullptr) {
        devices_ = true;
        path_ = path;
    }

    /// A write of which nothing goes past the page cache, where the file's policy is auto.
    void write_through_cache() { all_cached_ = true; }

    /// Where the bytes of a read come from, for files that may be in the page cache.
    /// `through_cache`: all of them from there; what it lacks is read into it.
    void consult(CacheLookup& lookup, bool through_cache) {
        lookup_ = &lookup;
        through_cache_ = through_cache && op_ == Op::kRead;
    }

    /// The next request of this phase, of at most `block_bytes` (a multiple of every alignment);
    /// nullptr when the phase is exhausted. The same until pop(), whatever `block_bytes` says then.
    [[nodiscard]] const Draft* peek(std::uint32_t block_bytes) {
        return drafted_ || draft_next(block_bytes) ? &draft_ : nullptr;
    }
    void pop() {
        PENSTOCK_ASSERT(drafted_);
        drafted_ = false;
        if (draft_.extents != 0) {
            cursor_ = {cursor_.index + draft_.extents, 0};
        } else {
            advance(draft_.wanted_bytes);
        }
    }

    /// After the first phase is exhausted: are there buffered ends to write?
    [[nodiscard]] bool has_edges() const { return has_edges_ && phase_ == Phase::kMain; }
    void start_edges();

private:
    enum class Phase : std::uint8_t { kMain, kEdges };

    [[nodiscard]] bool draft_next(std::uint32_t block_bytes);
    inline void draft_read(const os::Geometry& geometry, std::uint32_t block_bytes);
    void draft_buffered(std::uint32_t block_bytes);
    [[nodiscard]] inline CacheLookup::Stretch look(os::File& file);
    [[nodiscard]] CacheLookup::Stretch look_where_long(os::File& file);
    [[nodiscard]] CacheLookup::Stretch look_before_end(os::File& file, std::uint64_t list_bytes);
    [[nodiscard]] std::uint64_t list_bytes_ahead();
    [[nodiscard]] bool draft_cached_list(std::uint64_t block_bytes, std::uint64_t stretch_end);
    [[nodiscard]] bool draft_over_gaps(std::uint64_t align, std::uint64_t block_bytes,
                                       std::uint64_t list_end);
    bool draft_write(const os::Geometry& geometry, std::uint32_t block_bytes);
    bool draft_edge(const os::Geometry& geometry, std::uint32_t block_bytes);
    [[nodiscard]] bool run_is_cached(const os::Geometry& geometry) const;
    bool enter_middle(const os::Geometry& geometry);
    void draft_through_cache(std::uint64_t limit_bytes);
    void draft_straight(os::IoPath io, std::uint64_t bytes);
    void draft_slot(std::uint64_t skip_bytes, std::uint64_t wanted_bytes, std::uint64_t align);
    [[nodiscard]] inline bool settle();
    [[nodiscard]] inline bool stand_on(const Extent& extent);
    [[nodiscard]] bool mine(std::uint32_t file) const {
        return file - first_file_ < groups_.size() && groups_[file - first_file_] == group_;
    }
    // How many bytes, from `after_bytes` behind the cursor, can go straight in one request.
    [[nodiscard]] std::uint64_t straight(std::uint64_t after_bytes, std::uint64_t limit_bytes,
                                         std::uint64_t align, std::uint64_t memory_align) const {
        if (on_device_) {
            return straight_to_device(after_bytes, limit_bytes);
        }
        if (after_bytes == 0 && here_bytes_ >= limit_bytes &&
            base::is_aligned(here_, memory_align)) {
            return base::align_down(limit_bytes, std::max(align, memory_align));
        }
        return straight_over(after_bytes, limit_bytes, align, memory_align);
    }
    [[nodiscard]] std::uint64_t straight_over(std::uint64_t after_bytes, std::uint64_t limit_bytes,
                                              std::uint64_t align,
                                              std::uint64_t memory_align) const;
    [[nodiscard]] std::uint64_t straight_to_device(std::uint64_t after_bytes,
                                                   std::uint64_t limit_bytes) const;
    // How far the run reaches from the cursor on, at most `limit_bytes`.
    [[nodiscard]] std::uint64_t covered(std::uint64_t limit_bytes) const {
        if (here_bytes_ >= limit_bytes) {
            return limit_bytes;
        }
        return stands_alone() ? here_bytes_ : walked(limit_bytes);
    }
    [[nodiscard]] std::uint64_t walked(std::uint64_t limit_bytes) const;
    // The same for a slot of a request: to a device only so far as few pieces of memory reach.
    [[nodiscard]] std::uint64_t slot_bytes(std::uint64_t limit_bytes) const {
        const std::uint64_t bytes = covered(limit_bytes);
        return on_device_ && bytes > here_bytes_ ? reached_by_few_pieces(bytes) : bytes;
    }
    [[nodiscard]] std::uint64_t reached_by_few_pieces(std::uint64_t limit_bytes) const;
    // The run ends with the extent under the cursor, as one look at the next one tells.
    [[nodiscard]] bool stands_alone() const {
        const std::uint64_t next = cursor_.index + 1;
        if (next >= extents_->count() || next > end_.index) {
            return true;
        }
        return extents_->with(next, [this](const Extent& extent) {
            return extent.memory.bytes != 0 && (extent.offset != offset_ + here_bytes_ ||
                                                extent.file != file_ || is_elsewhere(extent));
        });
    }
    // Not of the place of the extent under the cursor.
    [[nodiscard]] bool is_elsewhere(const Extent& extent) const {
        return devices_ && place_of(extent.memory) != place_;
    }
    // Moves the cursor `bytes` on; the extents under it were walked before.
    void advance(std::uint64_t bytes) {
        run_next_ += bytes;
        if (bytes == here_bytes_) {
            cursor_ = {cursor_.index + 1, 0};
        } else {
            advance_within(bytes);
        }
    }
    void advance_within(std::uint64_t bytes);

    CacheLookup* lookup_ = nullptr;
    const Extents* extents_ = nullptr;
    Files files_;
    std::span<const std::uint32_t> groups_;
    std::uint32_t group_ = 0;
    std::uint32_t first_file_ = 0;
    std::uint64_t gap_bytes_ = 0;
    Op op_ = Op::kRead;
    bool allow_short_ = false;
    bool all_cached_ = false;
    bool through_cache_ = false;
    bool devices_ = false;
    bool on_device_ = false;   ///< the cursor is
    bool path_takes_ = false;  ///< what is under the cursor, where that is aligned
    DevicePath* path_ = nullptr;
    Phase phase_ = Phase::kMain;
    bool has_edges_ = false;
    bool drafted_ = false;
    bool in_run_ = false;  ///< writes: the cursor is inside a run that began before
    Position begin_;
    Position end_;
    Position cursor_;
    std::uint32_t file_ = 0;     ///< of the cursor
    std::uint64_t offset_ = 0;   ///< of the cursor
    MemoryPlace place_;          ///< of the cursor, where there are devices
    std::byte* here_ = nullptr;  ///< memory at the cursor, as far as its extent goes
    std::uint64_t here_bytes_ = 0;
    std::uint64_t ahead_bytes_ =
        0;                          ///< of the run from the cursor on, where look() walked it; or 0
    std::uint64_t list_begin_ = 0;  ///< [list_begin_, list_end_) of list_bytes_ahead()
    std::uint64_t list_end_ = 0;
    std::uint32_t list_file_ = 0;
    bool list_is_dense_ = false;
    std::uint64_t run_next_ = 0;  ///< where the run in hand goes on
    std::uint32_t run_file_ = 0;
    std::uint64_t edge_bytes_ = 0;  ///< what is left of the end in hand
    Draft draft_;
};

/// Fills `pieces` with the caller's memory for `bytes` bytes from `at`; neighbours in memory become
/// one piece. Returns how many were used.
[[nodiscard]] std::size_t gather_pieces(const Extents& extents, Position at, std::uint64_t bytes,
                                        std::span<iovec> pieces);

/// The next bytes of a request over gaps that are wanted and adjoin, after the first `done_bytes`.
struct Stretch {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
};
[[nodiscard]] Stretch next_wanted(const Extents& extents, const Draft& draft,
                                  std::uint32_t done_bytes);

/// The first extent of a request that reaches past `offset` of the file; there is one.
[[nodiscard]] std::uint64_t first_past(const Extents& extents, const Draft& draft,
                                       std::uint64_t offset);

}  // namespace penstock::engine
