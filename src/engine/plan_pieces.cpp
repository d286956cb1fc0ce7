// SPDX-License-Identifier: Apache-2.0
// The pieces of memory of a request that was planned.
#include "base/assert.hpp"
#include "engine/plan.hpp"

#include <algorithm>

namespace penstock::engine {

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
