// SPDX-License-Identifier: Apache-2.0
#include "format/file_layout.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"

#include <algorithm>
#include <cstring>

namespace penstock::format {

void FileLayout::add(Piece::Kind kind, std::uint64_t bytes, std::uint64_t source) {
    if (bytes == 0) {
        return;
    }
    if (!pieces_.empty() && kind == Piece::Kind::kLiteral && pieces_.back().kind == kind) {
        pieces_.back().bytes += bytes;  // literals are in the order of the file
    } else {
        pieces_.push_back({kind, total_bytes_, bytes, source});
    }
    const auto total = base::checked_add(total_bytes_, bytes);
    PENSTOCK_ASSERT(total.has_value());
    total_bytes_ = *total;
}

void FileLayout::literal(std::string_view bytes) {
    add(Piece::Kind::kLiteral, bytes.size(), literals_.size());
    literals_ += bytes;
}

void FileLayout::zeros(std::uint64_t bytes) {
    add(Piece::Kind::kZeros, bytes, 0);
}

void FileLayout::payload(std::uint64_t number, std::uint64_t bytes) {
    add(Piece::Kind::kPayload, bytes, number);
}

void FileLayout::patch(std::uint64_t source, std::string_view bytes) {
    PENSTOCK_ASSERT(source <= literals_.size() && bytes.size() <= literals_.size() - source);
    literals_.replace(source, bytes.size(), bytes);
}

std::vector<PieceSlice> FileLayout::slices(FileRange range) const {
    PENSTOCK_ASSERT(range.begin <= range.end && range.end <= total_bytes_);
    std::vector<PieceSlice> out;
    const auto behind = [](std::uint64_t offset, const Piece& p) { return offset < p.offset; };
    auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), range.begin, behind);
    if (piece != pieces_.begin()) {
        --piece;
    }
    for (; piece != pieces_.end() && piece->offset < range.end; ++piece) {
        const std::uint64_t begin = std::max(range.begin, piece->offset);
        const std::uint64_t end = std::min(range.end, piece->offset + piece->bytes);
        if (begin >= end) {
            continue;
        }
        PieceSlice slice{piece->kind, begin, end - begin, 0, 0, nullptr};
        if (piece->kind == Piece::Kind::kPayload) {
            slice.payload = piece->source;
            slice.payload_offset = begin - piece->offset;
        } else if (piece->kind == Piece::Kind::kLiteral) {
            slice.literal = literals_.data() + piece->source + (begin - piece->offset);
        }
        out.push_back(slice);
    }
    return out;
}

void FileLayout::copy(FileRange range, std::span<const std::span<const std::byte>> payloads,
                      std::span<std::byte> out) const {
    PENSTOCK_ASSERT(out.size() == range.end - range.begin);
    for (const PieceSlice& slice : slices(range)) {
        std::byte* to = out.data() + (slice.offset - range.begin);
        if (slice.kind == Piece::Kind::kLiteral) {
            std::memcpy(to, slice.literal, slice.bytes);
        } else if (slice.kind == Piece::Kind::kZeros) {
            std::memset(to, 0, slice.bytes);
        } else {
            const auto payload = payloads[slice.payload];
            PENSTOCK_ASSERT(slice.payload_offset + slice.bytes <= payload.size());
            std::memcpy(to, payload.data() + slice.payload_offset, slice.bytes);
        }
    }
}

std::vector<FileRange> cut_ranges(std::uint64_t total_bytes, std::uint64_t block_bytes,
                                  std::uint64_t target_bytes) {
    PENSTOCK_ASSERT(base::is_power_of_two(block_bytes));
    const std::uint64_t step = std::max(base::align_down(target_bytes, block_bytes), block_bytes);
    std::vector<FileRange> out;
    for (std::uint64_t begin = 0; begin < total_bytes;) {
        const std::uint64_t end = total_bytes - begin > step ? begin + step : total_bytes;
        out.push_back({begin, end});
        begin = end;
    }
    return out;
}

}  // namespace penstock::format
