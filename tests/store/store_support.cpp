// SPDX-License-Identifier: Apache-2.0
#include "store/store_support.hpp"

#include "base/raise.hpp"
#include "format/safetensors.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/stock_index.hpp"
#include "stream/checksum.hpp"
#include "support/test_engine.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

namespace penstock::test {

Tensors::Tensors(const std::vector<std::uint64_t>& counts, std::uint64_t seed) {
    for (const std::uint64_t count : counts) {
        data_.push_back(support::pattern(count * 4, seed * 1000 + data_.size()));
    }
}

std::string Tensors::name(std::size_t tensor) {
    return fmt::format("t{:03}", tensor);
}

State Tensors::state() const {
    State state;
    for (std::size_t i = 0; i < data_.size(); ++i) {
        state.tensors.push_back(
            {.name = name(i), .dtype = "F32", .shape = {data_[i].size() / 4}, .data = data_[i]});
    }
    state.structure = kNoValues;
    return state;
}

void Tensors::change(std::size_t tensor, std::uint64_t seed) {
    const std::vector<std::byte> fresh = support::pattern(data_[tensor].size(), seed + 77);
    std::copy(fresh.begin(), fresh.end(), data_[tensor].begin());  // in place, as training does
}

std::uint64_t Tensors::bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& data : data_) {
        bytes += data.size();
    }
    return bytes;
}

std::vector<std::byte> read_whole(Engine& /*engine*/, const FileSystem& files,
                                  const std::string& path) {
    const File file = files.open(path, {.cache = CachePolicy::kCached});
    return support::get_bytes(file, 0, file.size());
}

namespace {

using Bytes = std::vector<std::byte>;

// Every sum, and which bytes of the files they cover.
bool check_sums(const store::Manifest& manifest, const std::map<std::string, Bytes>& shards) {
    std::uint64_t wrong = 0;
    for (const store::Shard& shard : manifest.shards) {
        const Bytes& bytes = shards.at(shard.file);
        wrong +=
            shard.header_sum ==
                    stream::bind(stream::content_hash(std::span(bytes).first(shard.header_bytes)),
                                 shard.id, shard.generation, 0)
                ? 0
                : 1;
    }
    for (const store::Tensor& tensor : manifest.tensors) {
        for (const store::Slice& slice : tensor.slices) {
            const store::Shard& shard = manifest.shards[slice.shard];
            const std::span<const std::byte> bytes = shards.at(shard.file);
            for (std::size_t i = 0; i < slice.sums.size(); ++i) {
                const std::uint64_t at = slice.begin + i * store::kChunkBytes;
                const std::uint64_t length =
                    std::min(store::kChunkBytes, slice.begin + slice.bytes - at);
                wrong +=
                    slice.sums[i] == stream::bind(stream::content_hash(bytes.subspan(at, length)),
                                                  shard.id, shard.generation, at)
                        ? 0
                        : 1;
            }
        }
    }
    EXPECT_EQ(wrong, 0U) << "sums that do not fit";
    return wrong == 0;
}

}  // namespace

bool look_at(Engine& engine, const FileSystem& files, const std::string& checkpoint,
             std::map<std::string, Bytes>& tensors) {
    const store::Manifest manifest = store::read_manifest(engine, files, checkpoint);
    std::map<std::string, Bytes> shards;
    std::map<std::string, std::set<std::string>> held;
    for (const store::Shard& shard : manifest.shards) {
        // By the name in the folder, which may be a link into another one.
        Bytes bytes = read_whole(engine, files, store::join(checkpoint, shard.file));
        const auto header = format::safetensors::read_header(bytes, bytes.size());
        if (!header) {
            ADD_FAILURE() << shard.file << ": " << header.error().describe();
            return false;
        }
        for (const auto& tensor : header->tensors) {
            const auto begin =
                bytes.begin() + static_cast<std::ptrdiff_t>(header->data_begin + tensor.begin);
            tensors[tensor.name] = {begin,
                                    begin + static_cast<std::ptrdiff_t>(tensor.end - tensor.begin)};
            held[shard.file].insert(tensor.name);
        }
        shards[shard.file] = std::move(bytes);
    }
    const Bytes text = read_whole(engine, files, store::join(checkpoint, format::kShardIndexName));
    const format::ShardIndex index = base::unwrap(
        format::parse_shard_index({reinterpret_cast<const char*>(text.data()), text.size()}));
    EXPECT_EQ(index.weight_map.size(), tensors.size());
    for (const auto& [tensor, file] : index.weight_map) {
        EXPECT_TRUE(held[file].contains(tensor)) << tensor << " is not in " << file;
    }
    return check_sums(manifest, shards) && !::testing::Test::HasFailure();
}

void expect_holds(Engine& engine, const FileSystem& files, const std::string& checkpoint,
                  const Tensors& tensors) {
    std::map<std::string, Bytes> found;
    ASSERT_TRUE(look_at(engine, files, checkpoint, found)) << checkpoint;
    ASSERT_EQ(found.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(found[Tensors::name(i)] == tensors.data(i)) << Tensors::name(i);
    }
}

}  // namespace penstock::test
