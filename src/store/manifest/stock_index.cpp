// SPDX-License-Identifier: Apache-2.0
#include "store/manifest/stock_index.hpp"

#include "format/json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace penstock::store {

namespace {

std::string slice_name(std::string_view tensor, std::span<const std::uint64_t> offset) {
    return fmt::format("{}@{}", tensor, fmt::join(offset, ","));
}

format::ShardIndex index_of(const Manifest& manifest, bool slices) {
    format::ShardIndex index;
    index.weight_map.reserve(manifest.tensors.size());
    std::uint64_t bytes = 0;
    for (const Tensor& tensor : manifest.tensors) {
        for (const Slice& slice : tensor.slices) {
            const bool whole = slice.shape == tensor.shape;
            if (whole || slices) {
                index.weight_map.emplace_back(
                    whole ? tensor.name : slice_name(tensor.name, slice.offset),
                    manifest.shards.at(slice.shard).file);
                bytes += slice.bytes;
            }
        }
    }
    index.total_bytes = bytes;
    return index;
}

}  // namespace

format::ShardIndex stock_index(const Manifest& manifest) {
    return index_of(manifest, false);
}

format::ShardIndex earlier_stock_index(const Manifest& manifest) {
    return index_of(manifest, true);
}

std::string stock_places(std::span<const StockPlace> places) {
    std::string out = "{";
    for (const StockPlace& place : places) {
        out += out.size() == 1 ? "" : ",";
        format::append_json_string(out, place.tensor);
        out += fmt::format(":{{\"saved_offsets\":[{}]}}", fmt::join(place.offset, ","));
    }
    return out + '}';
}

}  // namespace penstock::store
