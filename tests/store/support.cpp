// SPDX-License-Identifier: Apache-2.0
#include "store/support.hpp"

#include "format/safetensors.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/stock_index.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <map>

namespace penstock::test {

namespace {

namespace safetensors = format::safetensors;

std::vector<std::uint64_t> sums_of(std::span<const std::byte> data, const store::Shard& shard,
                                   std::uint64_t begin) {
    std::vector<std::uint64_t> sums;
    for (std::uint64_t at = 0; at < data.size(); at += store::kChunkBytes) {
        const auto chunk =
            data.subspan(at, std::min<std::uint64_t>(store::kChunkBytes, data.size() - at));
        sums.push_back(
            stream::bind(stream::content_hash(chunk), shard.id, shard.generation, begin + at));
    }
    return sums;
}

}  // namespace

store::Manifest write_checkpoint(const std::string& folder, const std::vector<TestTensor>& tensors,
                                 const TestCheckpoint& options) {
    store::Manifest manifest;
    manifest.generation = options.generation;
    manifest.step = options.step;
    manifest.saved_unix_ns = 1'700'000'000'000'000'000;
    manifest.structure = options.structure;
    std::uint32_t shards = 0;
    for (const TestTensor& t : tensors) {
        shards = std::max(shards, t.shard + 1);
    }
    std::map<std::string, std::size_t> known;
    for (std::uint32_t number = 0; number < shards; ++number) {
        std::vector<safetensors::Tensor> list;
        std::vector<format::test::Bytes> payloads;
        std::vector<const StateTensor*> held;
        for (const TestTensor& t : tensors) {
            if (t.shard == number) {
                const auto type = safetensors::type_named(t.tensor.dtype);
                list.push_back({t.tensor.name, type.value(), t.tensor.shape, 0, 0});
                payloads.emplace_back(t.tensor.data.span().begin(), t.tensor.data.span().end());
                held.push_back(&t.tensor);
            }
        }
        const auto layout = safetensors::Layout::make(list);
        EXPECT_TRUE(layout) << format::test::why(layout);
        const auto file = format::test::assemble(layout->file(), payloads);
        store::Shard shard;
        shard.file = fmt::format("shard-{:05}.safetensors", number + 1);
        shard.id = fmt::format("{:016x}{:016x}", options.seed, number);
        shard.generation = options.generation;
        shard.bytes = file.size();
        shard.header_bytes = layout->data_begin();
        shard.header_sum =
            stream::bind(stream::content_hash(std::span(file).first(shard.header_bytes)), shard.id,
                         shard.generation, 0);
        write_text(folder + "/" + shard.file, format::test::text_of(file));
        for (std::size_t i = 0; i < held.size(); ++i) {
            const StateTensor& t = *held[i];
            const std::uint64_t begin = layout->data_begin() + layout->tensors()[i].begin;
            const bool whole = t.global_shape.empty();
            const auto [at, fresh] = known.emplace(t.name, manifest.tensors.size());
            if (fresh) {
                manifest.tensors.push_back({t.name, t.dtype, whole ? t.shape : t.global_shape, {}});
            }
            manifest.tensors[at->second].slices.push_back(
                {t.shape, whole ? std::vector<std::uint64_t>(t.shape.size(), 0) : t.global_offset,
                 number, begin, t.data.bytes, options.generation,
                 options.checksums ? sums_of(t.data.span(), shard, begin)
                                   : std::vector<std::uint64_t>()});
            manifest.written_bytes += t.data.bytes;
        }
        manifest.shards.push_back(std::move(shard));
    }
    write_text(folder + "/" + std::string(format::kShardIndexName),
               *format::render_shard_index(store::stock_index(manifest)));
    write_text(folder + "/" + std::string(store::kManifestName), store::render(manifest));
    return manifest;
}

}  // namespace penstock::test
