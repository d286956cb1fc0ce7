// SPDX-License-Identifier: Apache-2.0
#include "state/streamed/streamed_file.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/torch_file.hpp"
#include "format/zip/crc32.hpp"
#include "state/structure/structure.hpp"
#include "state/writing/file_writer.hpp"
#include "state/writing/replace.hpp"
#include "stream/checksum.hpp"
#include "stream/progress_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::array<char, base::kPageBytes> kNoText{};

std::uint64_t crc_of(std::span<const std::byte> piece) {
    return format::crc32(piece);
}

std::uint32_t combined(const std::vector<std::uint64_t>& sums, std::uint64_t bytes,
                       std::uint64_t piece_bytes) {
    std::uint32_t crc = 0;
    for (const std::uint64_t sum : sums) {
        const std::uint64_t count = std::min(piece_bytes, bytes);
        crc = format::crc32_combine(crc, static_cast<std::uint32_t>(sum), count);
        bytes -= count;
    }
    return crc;
}

std::string little_endian(std::uint32_t value) {
    std::string out;
    for (int i = 0; i < 4; ++i, value >>= 8U) {
        out += static_cast<char>(value);
    }
    return out;
}

// Describes the tensors that have been written.
struct Described {
    std::vector<StateTensor> tensors;

    void add(const StateTensor& tensor) {
        tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {nullptr, tensor.data.bytes}});
    }
    // A dict of them; its storages are theirs, in their order.
    [[nodiscard]] format::ValueTree tree() const {
        std::vector<StoredTensor> stored;
        for (const StateTensor& t : tensors) {
            stored.push_back({t.name, t.dtype, t.shape, t.data.bytes});
        }
        Skeleton skeleton = skeleton_of("null", stored);
        PENSTOCK_ASSERT(skeleton.sources.size() == tensors.size());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            PENSTOCK_ASSERT(skeleton.sources[i] == tensors[i].name);
        }
        return std::move(skeleton.tree);
    }
};

}  // namespace

MemoryPool window_pool() {
    return MemoryPool({.keep_on_fork = false});
}

void write_texts(stream::StagedWriter& writer, const format::FileLayout& file,
                 format::FileRange range) {
    for (const format::PieceSlice& slice : file.slices(range)) {
        PENSTOCK_ASSERT(slice.kind != format::Piece::Kind::kPayload);
        const bool zeros = slice.kind == format::Piece::Kind::kZeros;
        PENSTOCK_ASSERT(!zeros || slice.bytes <= kNoText.size());
        writer.write(slice.offset,
                     std::string_view(zeros ? kNoText.data() : slice.literal, slice.bytes));
    }
}

void rethrow_full(const std::string& path) {
    try {
        throw;
    } catch (const Error& error) {
        if (error.system_errno() != ENOSPC) {
            throw;
        }
        base::raise(base::system_error(
            ENOSPC, "save", path, kNoOffset,
            fmt::format("the device is full ({}); nothing was saved, and an old file is unchanged. "
                        "Free room, or save elsewhere",
                        error.what())));
    }
}

void save_appended(Engine& engine, const FileSystem& files, const std::string& path,
                   Arrivals& arrivals, const SaveFileOptions& options) {
    const stream::PieceSums sums{stream::kCrcPieceBytes, crc_of};
    Replacement replacement(files, path);
    stream::ProgressClock clock(options.progress, "save", path);
    MemoryPool pool = window_pool();
    stream::StagedWriter writer(engine, replacement.file(), clock, pool);
    const std::string stem(base::last_name(path).substr(0, base::last_name(path).rfind('.')));
    auto layout = format::torch_file::Layout::begin(stem.empty() ? "archive" : stem);
    Described described;
    std::uint64_t written = 0;
    while (const auto arrival = arrivals.next()) {
        const std::uint64_t bytes = arrival->tensor.data.bytes;
        const std::size_t storage = described.tensors.size();
        described.add(arrival->tensor);
        layout.append(bytes);
        const std::uint64_t begin = layout.payload_offset(storage);
        write_texts(writer, layout.file(), {written, begin});
        const std::uint32_t crc =
            combined(arrivals.write(writer, begin, arrival->tensor, sums), bytes, sums.piece_bytes);
        layout.set_crc(storage, crc);
        writer.patch(layout.crc_offset(storage), little_endian(crc));
        written = begin + bytes;
    }
    base::unwrap(layout.finish(described.tree()));
    write_texts(writer, layout.file(), {written, layout.file().total_bytes()});
    writer.finish();
    clock.end();
    replacement.commit(options.sync);
}

void save_placed(Engine& engine, const FileSystem& files, const std::string& path, FileImage& image,
                 const std::vector<std::size_t>& payload_of, Arrivals& arrivals,
                 const SaveFileOptions& options) {
    const format::FileLayout& file = image.file();
    std::vector<std::uint64_t> offsets(image.payloads().size(), 0);
    for (const format::Piece& piece : file.pieces()) {
        if (piece.kind == format::Piece::Kind::kPayload) {
            offsets[piece.source] = piece.offset;
        }
    }
    stream::PieceSums sums;
    if (image.piece_bytes() != 0) {
        sums = {image.piece_bytes(), [&image](auto piece) { return image.hash(piece); }};
    }
    Replacement replacement(files, path);
    make_room(files, replacement.file(), file.total_bytes());
    stream::ProgressClock clock(options.progress, "save", path);
    clock.set_total(file.total_bytes());
    MemoryPool pool = window_pool();
    stream::StagedWriter writer(engine, replacement.file(), clock, pool);
    while (const auto arrival = arrivals.next()) {
        const std::size_t payload = payload_of[arrival->number];
        if (payload == kNoPayload) {
            continue;
        }
        const auto made = arrivals.write(writer, offsets[payload], arrival->tensor, sums);
        if (image.piece_bytes() == 0) {
            continue;
        }
        std::vector<std::uint64_t> bytes(made.size(), sums.piece_bytes);
        if (!bytes.empty()) {
            bytes.back() = image.payloads()[payload].bytes - (made.size() - 1) * sums.piece_bytes;
        }
        image.set_sums(payload, made, bytes);
    }
    for (const format::Piece& piece : file.pieces()) {
        if (piece.kind != format::Piece::Kind::kPayload) {
            write_texts(writer, file, {piece.offset, piece.offset + piece.bytes});
        }
    }
    writer.finish();
    clock.tick(true);
    replacement.commit(options.sync);
}

}  // namespace penstock::state
