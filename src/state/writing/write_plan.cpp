// SPDX-License-Identifier: Apache-2.0
#include "state/writing/write_plan.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "stream/window_sums.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace penstock::state {

namespace {

using format::FileRange;

// A shorter stretch without sums is not worth a transfer of its own.
constexpr std::uint64_t kFreeBytesMin = base::kMiB;
constexpr std::array<std::byte, base::kPageBytes> kZeros{};

void add_cut(std::vector<FileRange>& out, FileRange range, std::uint64_t file_bytes) {
    for (std::uint64_t begin = range.begin; begin < range.end;) {
        const std::uint64_t end = std::min(begin + stream::window_bytes(file_bytes), range.end);
        out.push_back({begin, end});
        begin = end;
    }
}

}  // namespace

// Sums are in literals: blocks that hold some of those wait.
WritePlan write_plan(const FileImage& image, std::uint64_t block_bytes) {
    const format::FileLayout& file = image.file();
    WritePlan plan;
    if (image.piece_bytes() == 0) {
        add_cut(plan.free, {0, file.total_bytes()}, file.total_bytes());
        return plan;
    }
    std::vector<FileRange> waiting;
    for (const format::Piece& piece : file.pieces()) {
        if (piece.kind != format::Piece::Kind::kLiteral) {
            continue;
        }
        const std::uint64_t begin = base::align_down(piece.offset, block_bytes);
        const std::uint64_t end =
            std::min(base::align_up(piece.offset + piece.bytes, block_bytes), file.total_bytes());
        if (!waiting.empty() && begin < waiting.back().end + kFreeBytesMin) {
            waiting.back().end = end;
        } else {
            waiting.push_back({begin, end});
        }
    }
    if (!waiting.empty()) {
        FileRange& first = waiting.front();
        FileRange& last = waiting.back();
        first.begin = first.begin < kFreeBytesMin ? 0 : first.begin;
        last.end = file.total_bytes() - last.end < kFreeBytesMin ? file.total_bytes() : last.end;
    }
    std::uint64_t at = 0;
    for (const FileRange& range : waiting) {
        add_cut(plan.free, {at, range.begin}, file.total_bytes());
        add_cut(plan.waiting, range, file.total_bytes());
        at = range.end;
    }
    add_cut(plan.free, {at, file.total_bytes()}, file.total_bytes());
    return plan;
}

Extent extent_of(const FileImage& image, const format::PieceSlice& slice) {
    ConstMemory memory(reinterpret_cast<const std::byte*>(slice.literal), slice.bytes);
    if (slice.kind == format::Piece::Kind::kPayload) {
        const FileImage::Payload& payload = image.payloads()[slice.payload];
        memory = {payload.data + slice.payload_offset, slice.bytes, payload.kind, payload.device};
    } else if (slice.kind == format::Piece::Kind::kZeros) {
        PENSTOCK_ASSERT(slice.bytes <= kZeros.size());
        memory.data = kZeros.data();
    }
    return {slice.offset, to_write(memory), 0};
}

std::vector<Extent> extents_of(const FileImage& image, FileRange range) {
    std::vector<Extent> extents;
    for (const format::PieceSlice& slice : image.file().slices(range)) {
        extents.push_back(extent_of(image, slice));
    }
    return extents;
}

}  // namespace penstock::state
