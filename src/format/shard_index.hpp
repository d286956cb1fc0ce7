// SPDX-License-Identifier: Apache-2.0
// `model.safetensors.index.json`: which file of a sharded checkpoint holds which tensor.
#pragma once

#include "format/fault.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::format {

inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
/// The name that most writers use; a checkpoint of a store has one.
inline constexpr std::string_view kShardIndexName = "model.safetensors.index.json";
inline constexpr std::uint64_t kShardIndexBytesMax = 256'000'000;

struct ShardIndex {
    std::optional<std::uint64_t> total_bytes;  ///< of all tensors; some writers omit it
    std::string mark;                          ///< "penstock.index" in its metadata, or empty
    std::vector<std::pair<std::string, std::string>> weight_map;  ///< tensor, file; in the order of
                                                                  ///< the file
};

/// Errors: invalid JSON for an index, a tensor that occurs twice, a file name that leads out of the
/// folder of the index.
[[nodiscard]] Result<ShardIndex> parse_shard_index(std::string_view json);
[[nodiscard]] Result<std::string> render_shard_index(const ShardIndex& index);

/// "model-00002-of-00010.safetensors", or with a tag of eight hexadecimal digits
/// "model.0123abcd-00002-of-00010.safetensors"; number counts from 1.
[[nodiscard]] std::string shard_name(std::string_view stem, std::string_view tag,
                                     std::uint64_t number, std::uint64_t count);
/// Whether shard_name() gives this name for that stem, with any tag or without.
[[nodiscard]] bool is_shard_name(std::string_view name, std::string_view stem);

}  // namespace penstock::format
