// SPDX-License-Identifier: Apache-2.0
#include "engine/plan.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "engine/device_path/device_path.hpp"
#include "engine/page_cache/cached_read.hpp"

#include <algorithm>

namespace penstock::engine {

namespace {

using base::align_down;
using base::align_up;

// Below this a straight request is not worth splitting a block for: the second request costs the
// device more than the copy of these bytes costs a core.
constexpr std::uint64_t kStraightBytesMin = 64 * base::kKiB;

// Limits one request: copying so many pieces takes about as long as reading a block.
constexpr std::uint32_t kExtentsOverGapsMax = 1 << 16;

// Limits one request to a device: the driver is handed each piece, by the channel's thread.
// Pieces of memory that adjoin are one.
constexpr std::uint32_t kExtentsToDeviceMax = 1024;

// Limit a request for what is cached to some 100 us, so that several threads share a list.
constexpr std::uint32_t kCachedCallsMax = 128;
constexpr std::uint32_t kExtentsCachedMax = 4096;
// A list of fewer is not worth a question about the page cache.
constexpr std::uint64_t kListExtentsMin = 8;

// A piece of the caller's memory, with the run's rule for what may follow it.
struct Piece {
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
};

// Walks the pieces of one run from a position on, as far as the extents adjoin.
class RunWalk {
public:
    // `place`: that of all its memory; nullptr: of any.
    RunWalk(const Extents& extents, Position at, Position end, std::uint32_t file,
            std::uint64_t offset, const MemoryPlace* place)
        : extents_(extents), at_(at), end_(end), file_(file), offset_(offset), place_(place) {}

    bool next(Piece& piece) {
        for (; at_ < end_ && at_.index < extents_.count(); at_ = {at_.index + 1, 0}) {
            const Extent extent = extents_[at_.index];
            const std::uint64_t stop = at_.index == end_.index ? end_.skip : extent.memory.bytes;
            if (at_.skip >= stop) {
                continue;
            }
            if (extent.file != file_ || extent.offset + at_.skip != offset_ ||
                (place_ != nullptr && place_of(extent.memory) != *place_)) {
                return false;
            }
            piece = {extent.memory.data + at_.skip, stop - at_.skip};
            offset_ += piece.bytes;
            at_ = {at_.index + 1, 0};
            return true;
        }
        return false;
    }

private:
    const Extents& extents_;
    Position at_;
    Position end_;
    std::uint32_t file_;
    std::uint64_t offset_;
    const MemoryPlace* place_;
};

}  // namespace

Plan::Plan(const Extents& extents, Files files, Op op, Position begin, Position end,
           std::span<const std::uint32_t> groups, std::uint32_t group, std::uint32_t first_file)
    : extents_(&extents),
      files_(files),
      groups_(groups),
      group_(group),
      first_file_(first_file),
      op_(op),
      begin_(begin),
      end_(end),
      cursor_(begin) {}

bool Plan::draft_next(std::uint32_t block_bytes) {
    while (!drafted_) {
        if (!settle()) {
            return false;
        }
        const os::Geometry& geometry = files_[file_]->geometry();
        draft_ = Draft{};
        draft_.file = file_;
        draft_.at = cursor_;
        draft_.offset = offset_;
        if (phase_ == Phase::kEdges) {
            drafted_ = draft_edge(geometry, block_bytes);
        } else if (!geometry.direct || through_cache_) {
            draft_buffered(block_bytes);
            drafted_ = true;
        } else if (op_ == Op::kRead) {
            draft_read(geometry, block_bytes);
            drafted_ = true;
        } else {
            drafted_ = draft_write(geometry, block_bytes);
        }
    }
    return true;
}

void Plan::start_edges() {
    PENSTOCK_ASSERT(has_edges() && !drafted_);
    phase_ = Phase::kEdges;
    cursor_ = begin_;
    in_run_ = false;
}

// Moves the cursor over what is empty or another group's and learns where it stands. False at the
// end.
bool Plan::settle() {
    while (cursor_ < end_ && cursor_.index < extents_->count()) {
        const auto stands = [this](const Extent& extent) { return stand_on(extent); };
        if (extents_->with(cursor_.index, stands)) {
            return true;
        }
        cursor_ = {cursor_.index + 1, 0};
    }
    return false;
}

// False where nothing of the extent under the cursor is left, or it is another group's.
bool Plan::stand_on(const Extent& extent) {
    const std::uint64_t stop = cursor_.index == end_.index ? end_.skip : extent.memory.bytes;
    if (cursor_.skip >= stop || !(groups_.empty() || mine(extent.file))) {
        // Bytes after those of another group begin a run of their own, even if they adjoin in the
        // file, as RunWalk does.
        in_run_ = in_run_ && cursor_.skip >= stop;
        return false;
    }
    file_ = extent.file;
    offset_ = extent.offset + cursor_.skip;
    here_ = extent.memory.data + cursor_.skip;
    here_bytes_ = stop - cursor_.skip;
    in_run_ = in_run_ && file_ == run_file_ && offset_ == run_next_;
    if (devices_) {
        in_run_ = in_run_ && !is_elsewhere(extent);
        place_ = place_of(extent.memory);
        on_device_ = place_.kind != MemoryKind::kHost;
        path_takes_ = on_device_ && path_ != nullptr && path_->takes(*files_[file_], place_);
    }
    if (!in_run_) {
        edge_bytes_ = 0;
    }
    return true;
}

// Long runs that are in the cache are copied by several threads: a ring copies on one.
void Plan::draft_buffered(std::uint32_t block_bytes) {
    if (gap_bytes_ != 0 && draft_over_gaps(1, block_bytes, kOffsetMax)) {
        draft_.io = os::IoPath::kBuffered;
        return;
    }
    os::File& file = *files_[file_];
    const os::FileInfo& info = file.info();
    const bool is_read = op_ == Op::kRead;
    draft_.cached = is_read && !info.geometry.direct && info.asks_cache;
    std::uint64_t limit = block_bytes;
    const bool asks = is_read && lookup_ != nullptr && (info.keeps_cache || info.in_memory);
    if (const auto stretch = asks ? look_where_long(file) : CacheLookup::Stretch();
        stretch.end != 0) {
        limit = std::min(limit, stretch.end - offset_);
        draft_.cached = stretch.cached;
    }
    draft_through_cache(limit);
}

// Nothing (`end` 0) for a short run that no answer covers: it is not worth a question.
CacheLookup::Stretch Plan::look_where_long(os::File& file) {
    const CacheLookup::Stretch known = lookup_->known(file, offset_);
    const std::uint64_t bytes_min = CacheLookup::kAlwaysAskBytes;
    return known.end != 0 || covered(bytes_min) < bytes_min ? known : look(file);
}

CacheLookup::Stretch Plan::look(os::File& file) {
    const CacheLookup::Stretch known = lookup_->known(file, offset_);
    if (known.end != 0) {
        return known;
    }
    ahead_bytes_ = covered(CacheLookup::kWindowBytes);
    const std::uint64_t list_bytes = gap_bytes_ == 0 ? 0 : list_bytes_ahead();
    return allow_short_ && !file.info().in_memory
               ? look_before_end(file, list_bytes)
               : lookup_->look(file, offset_, ahead_bytes_, list_bytes);
}

// Bytes after the end of a file are in no cache, and not asked for: what reads them from there
// finds the end, whatever their number, and no device.
CacheLookup::Stretch Plan::look_before_end(os::File& file, std::uint64_t list_bytes) {
    const std::uint64_t size = file.size_seen();
    if (size <= offset_) {
        return {kOffsetMax, true, true};
    }
    const std::uint64_t most = size - offset_;
    return lookup_->look(file, offset_, std::min(ahead_bytes_, most), std::min(list_bytes, most));
}

// From the cursor to the end of the extents that follow one another in the file, within a window;
// 0 where they are few for that. Walked once for all of them.
std::uint64_t Plan::list_bytes_ahead() {
    if (file_ != list_file_ || offset_ < list_begin_ || offset_ >= list_end_) {
        std::uint64_t count = 0;
        std::uint64_t last = offset_;
        list_file_ = file_;
        list_begin_ = offset_;
        list_end_ = offset_ + here_bytes_;
        for (std::uint64_t i = cursor_.index + 1; i < end_.index; ++i, ++count) {
            const Extent extent = (*extents_)[i];
            if (extent.file != file_ || extent.offset < last ||
                extent.offset - offset_ >= CacheLookup::kWindowBytes) {
                break;
            }
            last = extent.offset;
            list_end_ = std::max(list_end_, extent.offset + extent.memory.bytes);
        }
        list_is_dense_ = count >= kListExtentsMin &&
                         (list_end_ - offset_) / count <= CacheLookup::kListSpacingBytes;
    }
    return list_is_dense_ ? list_end_ - offset_ : 0;
}

void Plan::draft_read(const os::Geometry& geometry, std::uint32_t block_bytes) {
    std::uint64_t stretch_bytes = kOffsetMax;
    std::uint64_t list_end = kOffsetMax;
    ahead_bytes_ = 0;
    const bool past_cache = path_takes_ && path_->required();
    if (os::File& file = *files_[file_];
        lookup_ != nullptr && file.info().asks_cache && !past_cache) {
        const CacheLookup::Stretch stretch = look(file);
        stretch_bytes = stretch.end - offset_;
        if (stretch.cached) {
            draft_.cached = true;
            if (gap_bytes_ == 0 || !draft_cached_list(block_bytes, stretch.end)) {
                draft_through_cache(std::min<std::uint64_t>(block_bytes, stretch_bytes));
            }
            return;
        }
        list_end = stretch.alone ? kOffsetMax : stretch.end;
    }
    // Bytes that go through a slot are a piece of memory too.
    std::uint64_t align = std::max(geometry.read_align, geometry.memory_align);
    if (path_takes_) {
        align = std::max<std::uint64_t>(align, kDevicePathAlign);
    }
    const std::uint64_t skip = offset_ - align_down(offset_, align);
    // A whole block from here on would end past the largest offset there is.
    const std::uint64_t last = align_down(kOffsetMax, align);
    if (offset_ >= last) {
        draft_through_cache(block_bytes);
        return;
    }
    block_bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(block_bytes, last - (offset_ - skip)));
    if (gap_bytes_ != 0 && draft_over_gaps(align, block_bytes, list_end)) {
        return;
    }
    block_bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(block_bytes, align_up(skip + stretch_bytes, align)));
    const std::uint64_t whole =
        allow_short_ ? align_down(files_[file_]->size_seen(), align) : kOffsetMax;
    const std::uint64_t clear = whole - std::min(whole, offset_);  // bytes before the last block
    if (skip != 0) {
        const std::uint64_t head = align - skip;
        const bool long_straight =
            clear >= head + kStraightBytesMin &&
            straight(head, kStraightBytesMin, align, geometry.memory_align) >= kStraightBytesMin;
        draft_slot(skip, long_straight ? head : slot_bytes(block_bytes - skip), align);
        return;
    }
    const std::uint64_t ahead = ahead_bytes_ != 0
                                    ? std::min<std::uint64_t>(ahead_bytes_, block_bytes)
                                    : covered(block_bytes);
    const std::uint64_t bytes = straight(0, std::min(ahead, clear), align, geometry.memory_align);
    if (bytes >= kStraightBytesMin || (bytes == ahead && !on_device_)) {
        draft_straight(os::IoPath::kDirect, bytes);
    } else {
        draft_slot(0, on_device_ ? slot_bytes(ahead) : ahead, align);
    }
}

// Whole extents that are in the page cache up to `stretch_end`, whatever lies between: who copies
// them makes few calls of the kernel's for those that are near. False where there is only one.
bool Plan::draft_cached_list(std::uint64_t block_bytes, std::uint64_t stretch_end) {
    if (on_device_) {
        const bool drafted = draft_over_gaps(1, block_bytes, stretch_end);
        draft_.io = os::IoPath::kBuffered;
        return drafted;
    }
    std::uint64_t total = 0;
    std::uint64_t last = offset_;  // where the extent before begins
    std::uint64_t end = offset_;   // of all so far
    std::uint32_t calls = 1;
    std::uint32_t seen = 0;
    std::uint32_t taken = 0;
    std::uint32_t with_bytes = 0;
    for (Position at = cursor_; at.index < end_.index && seen < kExtentsCachedMax;
         at = {at.index + 1, 0}) {
        const Extent extent = (*extents_)[at.index];
        const std::uint64_t bytes = extent.memory.bytes - at.skip;
        const std::uint64_t place = extent.offset + at.skip;
        ++seen;
        if (bytes == 0) {
            continue;
        }
        calls += bytes >= kCachedSmallBytes || place > end + kCachedGapBytes ? 1 : 0;
        if (extent.file != file_ || place < last || place + bytes > stretch_end ||
            total + bytes > block_bytes || calls > kCachedCallsMax || is_elsewhere(extent)) {
            break;
        }
        total += bytes;
        last = place;
        end = std::max(end, place + bytes);
        taken = seen;
        ++with_bytes;
    }
    if (with_bytes < 2) {
        return false;
    }
    draft_straight(os::IoPath::kBuffered, total);
    draft_.memory = nullptr;
    draft_.extents = taken;
    return true;
}

// Whole extents, as far as they lie near one another and fit a block; what lies between is read and
// dropped. A large one is never among them but where it overlaps another: its copy costs more than
// its request, nor one that ends after `list_end`. False where what begins here is a run that is
// better off by itself.
bool Plan::draft_over_gaps(std::uint64_t align, std::uint64_t block_bytes, std::uint64_t list_end) {
    const std::uint64_t gap = std::max(gap_bytes_, align);  // a block of the device is read once
    const std::uint64_t begin = align_down(offset_, align);
    std::uint64_t last = offset_;  // where the extent before begins
    std::uint64_t end = offset_;   // of all so far
    const std::uint32_t most = on_device_ ? kExtentsToDeviceMax : kExtentsOverGapsMax;
    std::uint32_t seen = 0;
    std::uint32_t taken = 0;
    bool gaps = false;
    for (Position at = cursor_; at.index < end_.index && seen < most; at = {at.index + 1, 0}) {
        const Extent extent = (*extents_)[at.index];
        const std::uint64_t bytes = extent.memory.bytes - at.skip;
        const std::uint64_t place = extent.offset + at.skip;
        ++seen;
        if (bytes == 0) {
            continue;
        }
        if (extent.file != file_ || place < last || place > end + gap || place + bytes > list_end ||
            align_up(place + bytes, align) > begin + block_bytes || is_elsewhere(extent)) {
            break;
        }
        if (place > end) {
            if (!gaps && end - offset_ >= kStraightBytesMin) {
                return false;
            }
            if (bytes >= kStraightBytesMin) {
                break;
            }
        }
        gaps = gaps || place != end;
        last = place;
        end = std::max(end, place + bytes);
        taken = seen;
    }
    if (gaps) {
        PENSTOCK_ASSERT(taken > 1 && end <= begin + block_bytes);
        draft_slot(offset_ - begin, end - offset_, align);
        draft_.extents = taken;
    }
    return gaps;
}

// False when the cursor was only moved on.
bool Plan::draft_write(const os::Geometry& geometry, std::uint32_t block_bytes) {
    if (!in_run_ && !enter_middle(geometry)) {
        return false;
    }
    const std::uint64_t edge = geometry.edge_align();
    const std::uint64_t ahead = covered(block_bytes + edge);
    const std::uint64_t middle_end = align_down(offset_ + ahead, edge);
    const std::uint64_t limit =
        middle_end <= offset_ ? 0 : std::min<std::uint64_t>(block_bytes, middle_end - offset_);
    if (limit == 0) {  // what is left of the run is its end
        has_edges_ = true;
        advance(ahead);
        in_run_ = false;
        return false;
    }
    const std::uint64_t bytes = straight(0, limit, geometry.write_align, geometry.memory_align);
    if (bytes >= kStraightBytesMin || (bytes == limit && !on_device_)) {
        draft_straight(os::IoPath::kDirect, bytes);
    } else {
        // Whole units of the device, also where one has more pieces.
        const std::uint64_t unit = geometry.write_align;
        draft_slot(0, on_device_ ? std::max(align_down(slot_bytes(limit), unit), unit) : limit,
                   unit);
    }
    return true;
}

// A short run costs one call as an end, and up to three otherwise, of which two wait for the
// device.
bool Plan::run_is_cached(const os::Geometry& geometry) const {
    if (!files_[file_]->info().asks_cache) {
        return false;
    }
    if (all_cached_) {
        return true;
    }
    const std::uint64_t bytes = covered(kStraightBytesMin);
    return bytes < kStraightBytesMin && !base::is_aligned(offset_ | bytes, geometry.edge_align());
}

// At the start of a written run: steps over its unaligned head. False when the cursor moved, so
// that the caller settles again.
bool Plan::enter_middle(const os::Geometry& geometry) {
    const std::uint64_t head = align_up(offset_, geometry.edge_align()) - offset_;
    run_file_ = file_;
    run_next_ = offset_;
    if (run_is_cached(geometry)) {
        has_edges_ = true;
        advance(covered(UINT64_MAX));
        return false;
    }
    in_run_ = true;
    if (head == 0) {
        return true;
    }
    has_edges_ = true;
    advance(covered(head));
    return false;
}

// The second phase: first the head of a run (or all of it), then, from the head's end, its tail.
bool Plan::draft_edge(const os::Geometry& geometry, std::uint32_t block_bytes) {
    const std::uint64_t edge = geometry.edge_align();
    if (!geometry.direct) {
        advance(covered(UINT64_MAX));
        return false;
    }
    if (!in_run_) {
        run_file_ = file_;
        run_next_ = offset_;
        in_run_ = true;
        edge_bytes_ =
            covered(run_is_cached(geometry) ? UINT64_MAX : align_up(offset_, edge) - offset_);
    }
    if (edge_bytes_ == 0) {
        const std::uint64_t ahead = covered(UINT64_MAX);
        const std::uint64_t tail_begin = align_down(offset_ + ahead, edge);
        if (tail_begin > offset_) {
            advance(tail_begin - offset_);
            return false;
        }
        edge_bytes_ = ahead;
    }
    draft_through_cache(std::min<std::uint64_t>(edge_bytes_, block_bytes));
    edge_bytes_ -= draft_.wanted_bytes;
    draft_.edge = true;
    return true;
}

// At most `limit_bytes` of the run, on the buffered path, where nothing has to be aligned.
void Plan::draft_through_cache(std::uint64_t limit_bytes) {
    if (on_device_) {
        draft_slot(0, slot_bytes(limit_bytes), 1);
        draft_.io = os::IoPath::kBuffered;
    } else {
        draft_straight(os::IoPath::kBuffered, straight(0, limit_bytes, 1, 1));
    }
}

void Plan::draft_straight(os::IoPath io, std::uint64_t bytes) {
    PENSTOCK_ASSERT(bytes != 0);
    draft_.io = io;
    draft_.bytes = static_cast<std::uint32_t>(bytes);
    draft_.wanted_bytes = draft_.bytes;
    draft_.memory = bytes <= here_bytes_ ? here_ : nullptr;
    draft_.to_device = on_device_;
}

void Plan::draft_slot(std::uint64_t skip_bytes, std::uint64_t wanted_bytes, std::uint64_t align) {
    PENSTOCK_ASSERT(wanted_bytes != 0);
    draft_.slot = true;
    draft_.offset = offset_ - skip_bytes;
    draft_.skip_bytes = static_cast<std::uint32_t>(skip_bytes);
    draft_.wanted_bytes = static_cast<std::uint32_t>(wanted_bytes);
    draft_.bytes = static_cast<std::uint32_t>(align_up(skip_bytes + wanted_bytes, align));
}

// A call of such a way names one piece of memory. It would take what is not aligned too, and bring
// it through memory of its own: a slot of ours is no worse, and can be seen.
std::uint64_t Plan::straight_to_device(std::uint64_t after_bytes, std::uint64_t limit_bytes) const {
    if (!path_takes_ || after_bytes >= here_bytes_ ||
        !base::is_aligned(here_ + after_bytes, kDevicePathAlign) ||
        !base::is_aligned(offset_ + after_bytes, kDevicePathAlign)) {
        return 0;
    }
    return align_down(std::min(limit_bytes, here_bytes_ - after_bytes), kDevicePathAlign);
}

// An odd address does not allow odd lengths of pieces: what the offset demands is demanded of
// each of them, too (statx(2), stx_dio_offset_align), and Linux 6.1 and 6.12 insist.
std::uint64_t Plan::straight_over(std::uint64_t after_bytes, std::uint64_t limit_bytes,
                                  std::uint64_t align, std::uint64_t memory_align) const {
    RunWalk walk(*extents_, cursor_, end_, file_, offset_, devices_ ? &place_ : nullptr);
    std::uint64_t total = 0;
    std::size_t pieces = 0;
    const std::byte* adjoining = nullptr;
    for (Piece piece; total < limit_bytes && walk.next(piece);) {
        const std::uint64_t before = std::min(after_bytes, piece.bytes);
        after_bytes -= before;
        piece.memory += before;
        piece.bytes -= before;
        if (piece.bytes == 0) {
            continue;
        }
        if (piece.memory != adjoining) {
            // A new address: it must be aligned, and so must the length of what came before it.
            if (!base::is_aligned(piece.memory, memory_align) ||
                !base::is_aligned(total, std::max(align, memory_align)) || pieces == kPiecesMax) {
                break;
            }
            ++pieces;
        }
        total += std::min(piece.bytes, limit_bytes - total);
        adjoining = piece.memory + piece.bytes;
    }
    return align_down(total, std::max(align, memory_align));
}

std::uint64_t Plan::walked(std::uint64_t limit_bytes) const {
    RunWalk walk(*extents_, cursor_, end_, file_, offset_, devices_ ? &place_ : nullptr);
    std::uint64_t total = 0;
    for (Piece piece; total < limit_bytes && walk.next(piece);) {
        total += piece.bytes;
    }
    return std::min(total, limit_bytes);
}

std::uint64_t Plan::reached_by_few_pieces(std::uint64_t limit_bytes) const {
    RunWalk walk(*extents_, cursor_, end_, file_, offset_, &place_);
    std::uint64_t total = 0;
    std::uint32_t pieces = 0;
    const std::byte* adjoining = nullptr;
    for (Piece piece; total < limit_bytes && walk.next(piece);) {
        if (piece.memory != adjoining && pieces++ == kExtentsToDeviceMax) {
            break;
        }
        total += piece.bytes;
        adjoining = piece.memory + piece.bytes;
    }
    return std::min(total, limit_bytes);
}

// Over any number of extents, or to a place within one.
void Plan::advance_within(std::uint64_t bytes) {
    while (bytes != 0) {
        const Extent extent = (*extents_)[cursor_.index];
        const std::uint64_t step = std::min(bytes, extent.memory.bytes - cursor_.skip);
        bytes -= step;
        cursor_.skip += step;
        if (cursor_.skip == extent.memory.bytes) {
            cursor_ = {cursor_.index + 1, 0};
        }
    }
}

}  // namespace penstock::engine
