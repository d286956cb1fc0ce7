// SPDX-License-Identifier: Apache-2.0
// What stock readers need: `model.safetensors.index.json`, which names the whole tensors, and the
// places of slices, by which torch.distributed.checkpoint reads the shards. All of it follows from
// the manifest.
#pragma once

#include "format/shard_index.hpp"
#include "store/manifest/manifest.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::store {

[[nodiscard]] format::ShardIndex stock_index(const Manifest& manifest);
/// As earlier saves made it: slices are in it, as "<tensor>@<offsets>".
[[nodiscard]] format::ShardIndex earlier_stock_index(const Manifest& manifest);

/// The key in a shard's metadata under which torch.distributed.checkpoint
/// (HuggingFaceStorageReader) looks for the places of its tensors. Its reader fails if one of them
/// is missing; without the key, all tensors of a file begin at zeros.
inline constexpr std::string_view kStockPlacesKey = "DCP_SHARDING_INFO";

struct StockPlace {
    std::string_view tensor;
    std::span<const std::uint64_t> offset;  ///< in the whole tensor, one per dimension
};

/// The value of that key.
[[nodiscard]] std::string stock_places(std::span<const StockPlace> places);

}  // namespace penstock::store
