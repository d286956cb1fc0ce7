// SPDX-License-Identifier: Apache-2.0
// A request: one piece of a transfer as the backend sees it, at most a block. The channel owns a
// fixed array of them; a backend keeps a pointer from push() until it gives it back from reap().
#pragma once

#include "base/clock.hpp"
#include "base/intrusive.hpp"
#include "base/planted.hpp"
#include "base/short_vector.hpp"
#include "engine/extents.hpp"
#include "os/file.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace penstock::engine {

class Part;

/// The files of a transfer: mostly one.
using FileList = base::ShortVector<std::shared_ptr<os::File>>;

enum class Op : std::uint8_t { kRead, kWrite };

/// A request straight to a device's memory (see device_path/) is aligned to so much: its offset in
/// the file, its length and its address.
inline constexpr std::uint32_t kDevicePathAlign = 4096;

/// How many pieces of memory a request gathers from or scatters to at most.
inline constexpr std::size_t kPiecesMax = 64;

/// A request as the plan makes it: its bytes and their path.
struct Draft {
    std::uint64_t offset = 0;  ///< in the file, as the device sees it (aligned on the direct path)
    std::uint32_t bytes = 0;   ///< likewise; the wanted ones and what alignment adds
    std::uint32_t skip_bytes =
        0;  ///< read through a slot: unwanted bytes before the first wanted one
    std::uint32_t wanted_bytes = 0;
    os::IoPath io = os::IoPath::kDirect;
    bool edge = false;       ///< the buffered end of a written run, or all of it: under the gate
    bool slot = false;       ///< the bytes pass through a slot
    bool to_device = false;  ///< straight to or from a device's memory: see device_path/
    bool cached = false;     ///< read from the page cache, where they are taken to be
    bool apart = false;      ///< over gaps, after an error: what is wanted is read by itself
    std::uint32_t file = 0;  ///< index in the transfer's files
    /// So many whole extents from `at` on, in the order of the file; else 0. A read over gaps,
    /// always through a slot: `wanted_bytes` then reaches from the first to the end of the last.
    /// `cached`, without a slot: a list, with whatever between; `wanted_bytes` has the extents'
    /// alone.
    std::uint32_t extents = 0;
    Position at;                  ///< where in the extents the wanted bytes begin
    std::byte* memory = nullptr;  ///< of all its bytes, where that is one piece of one extent

    [[nodiscard]] bool is_cached_list() const { return cached && extents != 0 && !slot; }
};

struct SlotChunk;

/// A piece of slot memory.
struct Slot {
    base::Link<Slot> link;
    SlotChunk* chunk = nullptr;
    std::byte* data = nullptr;
    std::uint32_t bytes = 0;
};

struct Request {
    base::Link<Request> link;  ///< of whichever list holds it

    // Input of the backend. `pieces` is the part that is left to do.
    Op op = Op::kRead;
    os::IoPath io = os::IoPath::kDirect;
    os::File* file = nullptr;
    std::uint64_t offset = 0;
    std::span<iovec> pieces;
    std::int64_t result = 0;  ///< of the last try: bytes, or -errno

    // The channel's.
    Draft draft;
    Part* part = nullptr;
    Slot* slot = nullptr;
    std::uint32_t done_bytes = 0;  ///< of draft.bytes, from its start, are through
    std::uint32_t tries = 0;       ///< in a row that brought nothing
    base::Nanos submitted = 0;
    std::array<iovec, kPiecesMax> memory{};
};

/// In a row of what the kernel refuses for a moment; the channel makes a pause before the next.
inline constexpr std::uint32_t kTriesAtOnce = 16;

/// Calls visit(memory, bytes) for `bytes` bytes from `at` on.
template <typename Visit>
void for_each_piece(const Extents& extents, Position at, std::uint64_t bytes, Visit visit) {
    while (bytes != 0) {
        const Extent extent = extents[at.index];
        const std::uint64_t step = std::min(bytes, extent.memory.bytes - at.skip);
        if (step != 0) {
            visit(extent.memory.data + at.skip, step);
        }
        bytes -= step;
        at = {at.index + 1, 0};
    }
}

/// Calls visit(memory, begin, end) for the extents of a request over gaps that have bytes, until it
/// returns false: their place is counted from the request's first wanted byte.
template <typename Visit>
void for_each_over_gaps(const Extents& extents, const Draft& draft, Visit visit) {
    const std::uint64_t first = draft.offset + draft.skip_bytes;
    const std::uint64_t end = draft.at.index + draft.extents;
    for (Position at = draft.at; at.index < end; at = {at.index + 1, 0}) {
        const Extent extent = extents[at.index];
        if (extent.memory.bytes != 0 &&
            !visit(extent.memory.data + at.skip, extent.offset + at.skip - first,
                   extent.offset + extent.memory.bytes - first)) {
            return;
        }
    }
}

/// Calls visit(memory, begin, bytes) for the wanted bytes of a request over gaps of which `bytes`
/// bytes from its first wanted one on are there, and returns how many these are.
template <typename Visit>
std::uint64_t for_each_piece_over_gaps(const Extents& extents, const Draft& draft,
                                       std::uint64_t bytes, Visit visit) {
    std::uint64_t total = 0;
    for_each_over_gaps(extents, draft,
                       [&](std::byte* memory, std::uint64_t begin, std::uint64_t end) {
                           if (begin >= bytes) {
                               return false;
                           }
                           const std::uint64_t step = std::min(end, bytes) - begin;
                           const bool early = begin != 0 && base::planted("gap_off_by_one");
                           visit(memory, early ? begin - 1 : begin, step);
                           total += step;
                           return true;
                       });
    return total;
}

/// Alignment at which a request may continue, in the file (`align`) and in memory.
[[nodiscard]] inline std::uint32_t resume_align(const Request& request, std::uint32_t align) {
    if (request.draft.to_device) {
        return kDevicePathAlign;
    }
    return request.io == os::IoPath::kDirect
               ? std::max(align, request.file->geometry().memory_align)
               : 1;
}

}  // namespace penstock::engine
