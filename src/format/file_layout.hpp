// SPDX-License-Identifier: Apache-2.0
// A file before it is written: pieces that tile it from the first byte to the last, each a payload
// of the caller (a tensor's bytes), literal bytes of the format, or zeros. Every offset is known
// before anything is written, so that threads, and ranks, can be given disjoint ranges of the
// *file*, cut at the blocks of the device: a range may hold the end of one payload and the start of
// the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::format {

struct Piece {
    enum class Kind : std::uint8_t { kPayload, kLiteral, kZeros };
    Kind kind = Kind::kZeros;
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t bytes = 0;
    std::uint64_t source = 0;  ///< payload: its number; literal: its offset in literals()
};

/// The part of a piece that lies in a range.
struct PieceSlice {
    Piece::Kind kind = Piece::Kind::kZeros;
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t bytes = 0;
    std::uint64_t payload = 0;         ///< its number
    std::uint64_t payload_offset = 0;  ///< in the payload
    const char* literal = nullptr;     ///< the bytes of a literal
};

struct FileRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

class FileLayout {
public:
    // Called in the order of the file. Pieces of no bytes leave no trace, but payload() records
    // where one would be.
    void literal(std::string_view bytes);
    void zeros(std::uint64_t bytes);
    /// Payloads are numbered by the caller; each occurs once.
    void payload(std::uint64_t number, std::uint64_t bytes);

    [[nodiscard]] std::uint64_t total_bytes() const noexcept { return total_bytes_; }
    [[nodiscard]] std::span<const Piece> pieces() const noexcept { return pieces_; }
    /// Bytes of the literals, which are contiguous; offsets into them do not change.
    [[nodiscard]] std::uint64_t literal_bytes() const noexcept { return literals_.size(); }
    [[nodiscard]] std::string_view literals() const noexcept { return literals_; }
    /// Changes literal bytes once they are known (checksums), from `source` on.
    void patch(std::uint64_t source, std::string_view bytes);

    /// The pieces in a range of the file, in its order. The range is within the file.
    [[nodiscard]] std::vector<PieceSlice> slices(FileRange range) const;
    /// Copies the bytes of a range, from the payloads by number. `out` has the size of the range.
    void copy(FileRange range, std::span<const std::span<const std::byte>> payloads,
              std::span<std::byte> out) const;

private:
    void add(Piece::Kind kind, std::uint64_t bytes, std::uint64_t source);

    std::vector<Piece> pieces_;
    std::string literals_;
    std::uint64_t total_bytes_ = 0;
};

/// Cuts a file of `total_bytes` into ranges of about `target_bytes`, at multiples of `block_bytes`
/// (a power of two); the last one ends with the file.
[[nodiscard]] std::vector<FileRange> cut_ranges(std::uint64_t total_bytes,
                                                std::uint64_t block_bytes,
                                                std::uint64_t target_bytes);

}  // namespace penstock::format
