// SPDX-License-Identifier: Apache-2.0
// The index for stock readers: the names that tensors have in their shards, and
// `model.safetensors.index.json`. All of it follows from the manifest.
#pragma once

#include "format/shard_index.hpp"
#include "store/manifest/manifest.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::store {

/// "<tensor>@<offsets>", for a slice that is not the whole tensor: a name occurs once in a file.
[[nodiscard]] std::string slice_name(std::string_view tensor,
                                     std::span<const std::uint64_t> offset);

[[nodiscard]] format::ShardIndex stock_index(const Manifest& manifest);

}  // namespace penstock::store
