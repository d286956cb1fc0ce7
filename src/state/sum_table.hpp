// SPDX-License-Identifier: Apache-2.0
// Checksums inside a single .safetensors: one string of its metadata, under a key of ours.
//
//   "penstock.checksums": "xxh3-64 <piece bytes> <data begin> <tensors> <sums>"
//
// Sums are 16 hexadecimal digits each, of every piece of every tensor, in the order of the data;
// pieces are cut from the beginning of each tensor. <tensors> is XXH3 of the tensors' description
// in the header (names, types, shapes, offsets), so a changed header is detected too. A program
// that rewrites the file and keeps the metadata would leave sums of other bytes: therefore <data
// begin>, the offset of the data (16 digits as well). If the file's offset differs, the table is
// foreign, and nothing is checked by it.
#pragma once

#include "format/safetensors.hpp"
#include "stream/file_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

inline constexpr std::string_view kSumTableKey = "penstock.checksums";

struct SumTable {
    std::uint64_t piece_bytes = 0;
    std::vector<std::uint64_t> sums;
    std::vector<std::uint64_t> first;  ///< first sum of tensor i of the header
};

/// Large enough that the sums of `data_bytes` take no more than 16 MiB.
[[nodiscard]] std::uint64_t table_piece_bytes(std::uint64_t data_bytes);

/// Tensors with begin and end, in the order of the data. The length does not depend on the sums.
[[nodiscard]] std::string render_sum_table(std::span<const format::safetensors::Tensor> tensors,
                                           std::uint64_t data_begin, std::uint64_t piece_bytes,
                                           std::span<const std::uint64_t> sums);

/// Parses the table of a file; nothing if it has none, or a foreign one. Throws Error kDamaged
/// (`path`) if the table is of this file and does not match its header.
[[nodiscard]] std::optional<SumTable> parse_sum_table(const format::safetensors::Header& header,
                                                      const std::string& path);

/// Adds the sums of a part of tensor `index` that is made of whole pieces; an end inside a piece
/// stays unchecked. wanted.offset: in the tensor.
void add_sums(stream::Wanted& wanted, const format::safetensors::Header& header,
              const SumTable& table, std::size_t index);

}  // namespace penstock::state
