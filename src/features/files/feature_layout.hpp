// SPDX-License-Identifier: Apache-2.0
// The layout of a feature file: tables of rows, by name. Pure: bytes in, structs out, and back.
//
//   main file   preamble (64 bytes of the first 4096), rows of part 0 unless there are folders,
//               checksums of the rows, directory
//   part files  where rows are striped over folders: a preamble of its own, then rows. Rows are
//               dealt to the parts in stripes of `stripe_rows`, one after the other
//
// Numbers are little-endian. A table begins at a multiple of 4096 in each part. Its row i lies at
// base + i * stride of its part; the bytes between rows are zero.
//
// The preamble has the place and the XXH3 of the directory, and its own; the directory has those of
// the checksums, one a chunk of a table's bytes in a part. The preamble is written last.
#pragma once

#include "base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::features {

inline constexpr std::uint64_t kBlockBytes = 4096;     ///< tables begin at multiples of it
inline constexpr std::uint64_t kPreambleBytes = 64;    ///< of the first block
inline constexpr std::uint64_t kChunkBytes = 1 << 20;  ///< one checksum for so many bytes
inline constexpr std::uint64_t kDirectoryBytesMax = std::uint64_t{64} << 20;
inline constexpr std::uint32_t kPartsMax = 1024;
inline constexpr std::uint32_t kTablesMax = 65536;
inline constexpr std::uint64_t kNameBytesMax = 1024;
inline constexpr std::uint64_t kDimensionsMax = 64;
inline constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 62;

/// The first bytes of a file.
enum class FileForm : std::uint8_t { kFeatures, kFeaturePart, kNpy, kOther };
[[nodiscard]] FileForm form_of(std::span<const std::byte> start);

struct Preamble {
    std::uint64_t file_bytes = 0;        ///< of the whole main file
    std::uint64_t directory_offset = 0;  ///< bytes
    std::uint64_t directory_bytes = 0;
    std::uint64_t directory_sum = 0;  ///< XXH3
    std::uint64_t id = 0;             ///< of the set of files
};

/// The first block of a part file.
struct PartPreamble {
    std::uint64_t file_bytes = 0;
    std::uint64_t id = 0;  ///< as that of the main file
    std::uint32_t part = 0;
    std::uint32_t parts = 0;
};

struct PartFile {
    std::string path;              ///< empty: the main file
    std::uint64_t data_end = 0;    ///< rows of this part lie before it
    std::uint64_t file_bytes = 0;  ///< of a part file; 0 of the main file
};

struct Table {
    std::string name;
    std::string dtype;  ///< as name_of(ElementType) has it
    std::vector<std::uint64_t> row_shape;
    std::uint64_t rows = 0;
    std::uint64_t row_bytes = 0;
    std::uint64_t stride_bytes = 0;
    std::uint64_t stripe_rows = 0;     ///< a power of two; rows that follow one another in a part
    std::vector<std::uint64_t> bases;  ///< of row 0 in each part
};

struct Directory {
    std::vector<PartFile> parts;
    std::vector<Table> tables;
    std::uint64_t sums_offset = 0;  ///< in the main file: by table, part and chunk
    std::uint64_t sums = 0;         ///< how many; 8 bytes each
    std::uint64_t sums_sum = 0;     ///< XXH3 of them
};

/// The place of a row: its part, and its number there.
struct RowPlace {
    std::uint32_t part = 0;
    std::uint64_t row = 0;
};
[[nodiscard]] inline RowPlace place_of(std::uint64_t row, std::uint64_t stripe_rows,
                                       std::uint64_t parts) {
    const std::uint64_t stripe = row / stripe_rows;
    return {static_cast<std::uint32_t>(stripe % parts),
            stripe / parts * stripe_rows + row % stripe_rows};
}
/// The row that lies there.
[[nodiscard]] inline std::uint64_t row_at(const RowPlace& place, std::uint64_t stripe_rows,
                                          std::uint64_t parts) {
    return (place.row / stripe_rows * parts + place.part) * stripe_rows + place.row % stripe_rows;
}
/// Rows of a table in one part.
[[nodiscard]] std::uint64_t rows_in_part(std::uint64_t rows, std::uint64_t stripe_rows,
                                         std::uint64_t parts, std::uint32_t part);
/// Bytes that a table takes in one part, a multiple of its stride.
[[nodiscard]] std::uint64_t bytes_in_part(const Table& table, std::uint64_t parts,
                                          std::uint32_t part);
/// Checksums of so many bytes.
[[nodiscard]] inline std::uint64_t chunks_of(std::uint64_t bytes) {
    return (bytes + kChunkBytes - 1) / kChunkBytes;
}

/// Mean bytes of the device's blocks that a row touches, over all rows of a long table that begins
/// at `base`.
[[nodiscard]] double touched_bytes(std::uint64_t row_bytes, std::uint64_t stride_bytes,
                                   std::uint64_t block_bytes, std::uint64_t base = 0);
/// The rule of the layout: of the row's own length and its multiples of 64, 128 ... 4096, the
/// stride whose mean blocks of 4096 bytes a row, times its length, is least; of equals the shorter.
/// So padding is added only where it saves a larger share of the reads than it adds to the file.
[[nodiscard]] std::uint64_t stride_for(std::uint64_t row_bytes);
/// Rows in a stripe: 64 KiB, and at least one.
[[nodiscard]] std::uint64_t stripe_rows_for(std::uint64_t stride_bytes);

/// Bytes of a row; 0 where they are no whole number, none, or 2^40 or more.
[[nodiscard]] std::uint64_t row_bytes_of(std::string_view dtype,
                                         std::span<const std::uint64_t> row_shape);

using Block = std::array<std::byte, kPreambleBytes>;
[[nodiscard]] Block encode(const Preamble& preamble);
[[nodiscard]] Block encode(const PartPreamble& preamble);
[[nodiscard]] std::vector<std::byte> encode(const Directory& directory);

// kDamaged, with the reason and the path where one is given. Each number is checked here: a
// directory that is returned has tables that lie in their parts and on no other.
[[nodiscard]] base::Result<Preamble> decode_preamble(std::span<const std::byte> start,
                                                     std::uint64_t file_bytes,
                                                     std::string_view path = {});
[[nodiscard]] base::Result<PartPreamble> decode_part(std::span<const std::byte> start,
                                                     std::uint64_t file_bytes,
                                                     std::string_view path = {});
[[nodiscard]] base::Result<Directory> decode_directory(std::span<const std::byte> bytes,
                                                       const Preamble& preamble,
                                                       std::string_view path = {});

}  // namespace penstock::features
