// SPDX-License-Identifier: Apache-2.0
// The pieces of memory of a request that was planned.
#include "base/assert.hpp"
#include "engine/plan.hpp"

#include <algorithm>
#include <cstring>

namespace penstock::engine {

namespace {

// Calls visit(memory, bytes) for the pieces of `bytes` bytes from `at` on.
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

}  // namespace

std::size_t gather_pieces(const Extents& extents, Position at, std::uint64_t bytes,
                          std::span<iovec> pieces) {
    std::size_t used = 0;
    for_each_piece(extents, at, bytes, [&](std::byte* memory, std::uint64_t step) {
        if (used != 0) {
            iovec& last = pieces[used - 1];
            if (static_cast<std::byte*>(last.iov_base) + last.iov_len == memory) {
                last.iov_len += step;
                return;
            }
        }
        PENSTOCK_ASSERT(used < pieces.size());
        pieces[used++] = {memory, step};
    });
    return used;
}

void copy_to_extents(const Extents& extents, Position at, const std::byte* memory,
                     std::uint64_t bytes) {
    for_each_piece(extents, at, bytes, [&](std::byte* piece, std::uint64_t step) {
        std::memcpy(piece, memory, step);
        memory += step;
    });
}

void copy_from_extents(const Extents& extents, Position at, std::byte* memory,
                       std::uint64_t bytes) {
    for_each_piece(extents, at, bytes, [&](std::byte* piece, std::uint64_t step) {
        std::memcpy(memory, piece, step);
        memory += step;
    });
}

namespace {

// Calls visit(memory, begin, end) for the extents of a request over gaps that have bytes, until it
// returns false: their place is counted from the request's first wanted byte.
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

}  // namespace

std::uint64_t copy_over_gaps(const Extents& extents, const Draft& draft, const std::byte* memory,
                             std::uint64_t bytes) {
    std::uint64_t copied = 0;
    for_each_over_gaps(extents, draft,
                       [&](std::byte* piece, std::uint64_t begin, std::uint64_t end) {
                           if (begin >= bytes) {
                               return false;
                           }
                           const std::uint64_t step = std::min(end, bytes) - begin;
                           std::memcpy(piece, memory + begin, step);
                           copied += step;
                           return true;
                       });
    return copied;
}

Stretch next_wanted(const Extents& extents, const Draft& draft, std::uint32_t done_bytes) {
    Stretch found;
    for_each_over_gaps(extents, draft,
                       [&](std::byte* /*piece*/, std::uint64_t from, std::uint64_t to) {
                           const auto begin = static_cast<std::uint32_t>(draft.skip_bytes + from);
                           const auto end = static_cast<std::uint32_t>(draft.skip_bytes + to);
                           if (end <= done_bytes) {
                               return true;
                           }
                           if (found.end == 0) {
                               found = {std::max(begin, done_bytes), end};
                           }
                           found.end = begin <= found.end ? std::max(found.end, end) : found.end;
                           return begin <= found.end;
                       });
    return found;
}

std::uint64_t first_past(const Extents& extents, const Draft& draft, std::uint64_t offset) {
    std::uint64_t index = draft.at.index;
    Extent extent = extents[index];
    while (extent.memory.bytes == 0 || extent.offset + extent.memory.bytes <= offset) {
        extent = extents[++index];
    }
    return index;
}

}  // namespace penstock::engine
