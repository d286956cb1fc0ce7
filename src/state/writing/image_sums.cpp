// SPDX-License-Identifier: Apache-2.0
#include "state/writing/image_sums.hpp"

#include "base/align.hpp"
#include "state/writing/write_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace penstock::state {

namespace {

using format::FileRange;
using format::PieceSlice;
using stream::WindowSums;

// Size of the pieces of files without sums, which are looked at and not summed.
constexpr std::uint64_t kLookedBytes = 4 * base::kMiB;

std::vector<WindowSums::Source> sources_of(const FileImage& image) {
    std::vector<WindowSums::Source> sources;
    for (std::size_t i = 0; i < image.payloads().size(); ++i) {
        sources.push_back({image.payloads()[i], 0, image.is_copy(i)});
    }
    for (const format::Piece& piece : image.file().pieces()) {
        if (piece.kind == format::Piece::Kind::kPayload) {
            sources[piece.source].offset = piece.offset;
        }
    }
    return sources;
}

// Offsets at which pieces are cut, so that each is summed for the write of one range.
std::vector<std::uint64_t> cuts_of(const FileImage& image, std::span<const FileRange> ranges) {
    std::vector<std::uint64_t> cuts;
    if (image.takes_cuts()) {
        for (const FileRange& range : ranges) {
            cuts.push_back(range.begin);
        }
        std::sort(cuts.begin(), cuts.end());
    }
    return cuts;
}

WindowSums::Options options_of(const FileImage& image, std::span<const FileRange> ranges,
                               const stream::Watch& watch, const std::string& path) {
    WindowSums::Options options;
    options.piece_bytes = image.piece_bytes() == 0 ? kLookedBytes : image.piece_bytes();
    if (image.piece_bytes() != 0) {
        options.hash = [&image](std::span<const std::byte> piece) { return image.hash(piece); };
    }
    options.cuts = cuts_of(image, ranges);
    options.watch = watch;
    options.name = [&image](std::size_t payload) { return image.name_of(payload); };
    options.path = path;
    return options;
}

}  // namespace

ImageSums::ImageSums(FileImage& image, std::span<const FileRange> ranges,
                     const stream::Watch& watch, const std::string& path)
    : image_(image),
      ranges_(ranges),
      set_(image.payloads().size()),
      sums_(sources_of(image), options_of(image, ranges, watch, path)) {
    for (const FileRange& range : ranges_) {
        std::vector<WindowSums::Pieces> written;
        for (const PieceSlice& slice : image_.file().slices(range)) {
            if (slice.kind == format::Piece::Kind::kPayload) {
                written.push_back(sums_.pieces(slice.payload, slice.payload_offset,
                                               slice.payload_offset + slice.bytes));
            }
        }
        std::vector<WindowSums::Pieces> needed;
        for (const std::size_t payload : image_.sums_in(range)) {
            needed.push_back(sums_.all_of(payload));
        }
        sums_.add(std::move(written), std::move(needed));
    }
}

bool ImageSums::is_ready(std::size_t range) {
    if (!sums_.is_ready(range)) {
        return false;
    }
    set_sums(range);
    return true;
}

void ImageSums::wait_ready(std::size_t range) {
    sums_.wait_ready(range);
    set_sums(range);
}

void ImageSums::set_sums(std::size_t range) {
    for (const std::size_t payload : image_.sums_in(ranges_[range])) {
        if (set_[payload]) {
            continue;
        }
        std::vector<std::uint64_t> bytes;
        const WindowSums::Pieces all = sums_.all_of(payload);
        for (std::size_t piece = all.first; piece < all.last; ++piece) {
            bytes.push_back(sums_.bytes_of(piece));
        }
        image_.set_sums(payload, sums_.sums(payload), bytes);
        set_[payload] = true;
    }
}

std::vector<Extent> ImageSums::extents(std::size_t range) const {
    std::vector<Extent> out;
    for (const PieceSlice& slice : image_.file().slices(ranges_[range])) {
        if (slice.kind != format::Piece::Kind::kPayload) {
            out.push_back(extent_of(image_, slice));
            continue;
        }
        std::uint64_t offset = slice.offset;
        for (const ConstMemory& memory :
             sums_.written_from(slice.payload, slice.payload_offset, slice.bytes)) {
            out.push_back({offset, to_write(memory), 0});
            offset += memory.bytes;
        }
    }
    return out;
}

}  // namespace penstock::state
