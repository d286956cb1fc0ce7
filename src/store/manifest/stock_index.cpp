// SPDX-License-Identifier: Apache-2.0
#include "store/manifest/stock_index.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace penstock::store {

std::string slice_name(std::string_view tensor, std::span<const std::uint64_t> offset) {
    return fmt::format("{}@{}", tensor, fmt::join(offset, ","));
}

format::ShardIndex stock_index(const Manifest& manifest) {
    format::ShardIndex index;
    index.weight_map.reserve(manifest.tensors.size());
    std::uint64_t bytes = 0;
    for (const Tensor& tensor : manifest.tensors) {
        for (const Slice& slice : tensor.slices) {
            index.weight_map.emplace_back(
                slice.shape == tensor.shape ? tensor.name : slice_name(tensor.name, slice.offset),
                manifest.shards.at(slice.shard).file);
            bytes += slice.bytes;
        }
    }
    index.total_bytes = bytes;
    return index;
}

}  // namespace penstock::store
