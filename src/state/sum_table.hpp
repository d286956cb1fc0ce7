// SPDX-License-Identifier: Apache-2.0
// Checksums inside a single .safetensors: one string of its metadata, under a key of ours.
//
//   "penstock.checksums": "xxh3-64 <piece bytes> <data begin> <tensors> <sums>"
//
// Sums are 16 hexadecimal digits each, of every piece of every tensor, in the order of the data;
// pieces are cut from the beginning of each tensor. <tensors> is XXH3 of what the header says of
// the tensors (names, types, shapes, offsets), so a changed header shows too. Who rewrites the file
// and takes the metadata along would leave sums of other bytes behind: therefore <data begin>, the
// offset of the data (16 digits as well). Where the file's is another one, the table is not of this
// file, and nothing is checked by it.
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
    std::vector<std::uint64_t> first;  ///< of tensor i of the header: its first sum
};

/// Large enough that the sums of `data_bytes` take no more than 16 MiB.
[[nodiscard]] std::uint64_t table_piece_bytes(std::uint64_t data_bytes);

/// Tensors with begin and end, in the order of the data. The text is as long for any sums.
[[nodiscard]] std::string render_sum_table(std::span<const format::safetensors::Tensor> tensors,
                                           std::uint64_t data_begin, std::uint64_t piece_bytes,
                                           std::span<const std::uint64_t> sums);

/// Of a file that was read; nothing where it has no table, or a foreign one. Throws Error kDamaged
/// (`path`) where the table is of this file and does not fit its header.
[[nodiscard]] std::optional<SumTable> parse_sum_table(const format::safetensors::Header& header,
                                                      const std::string& path);

/// The sums of a part of tensor `index`, where it is made of whole pieces; an end that lies inside
/// a piece stays unchecked. wanted.offset: in the file.
void add_sums(stream::Wanted& wanted, const format::safetensors::Header& header,
              const SumTable& table, std::size_t index);

}  // namespace penstock::state
