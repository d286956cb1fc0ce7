// SPDX-License-Identifier: Apache-2.0
// Saves an index of shards, whole and durable, or not at all:
//
//   1. what dead saves of the same index left goes
//   2. a record of the names that the new shards get, synced (index_folder.hpp)
//   3. the shards, each whole and durable under its name
//   4. a record of the shards of the index that is there
//   5. the index takes the place of that one: the new state is there, in one step
//   6. the old shards go, and then the records
//
//   killed in      what a reader finds    what the next save removes, by the records
//   1 to 3         the old state          the new shards, whole or half written
//   4, 5           the old state          the new shards
//   5, 6           the new state          the old shards
//
// Steps 1 and 2, and 4 to 6, are done by one save at a time: a lock of the folder, held for
// moments. Of saves that run at once the last to commit is what is there. The names of old shards
// are free after step 6, and the save after that may take them: a name alone does not say of which
// save a file is.
#pragma once

#include "format/safetensors.hpp"
#include "state/file_image.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

inline constexpr std::uint64_t kShardBytes = 5'000'000'000;  // what Hugging Face's writers take

/// The tensors of a `.safetensors`, or of several: payload i is tensor i.
struct NamedTensors {
    std::vector<format::safetensors::Tensor> tensors;
    format::safetensors::Metadata metadata;  ///< of each file
    std::vector<FileImage::Payload> payloads;
};

struct IndexOptions {
    std::uint64_t shard_bytes = kShardBytes;
    bool checksums = true;
    Progress progress = {};  ///< of the bytes of all shards
};

/// Which tensors each shard has: in their order, as many as `shard_bytes` takes; one that is larger
/// has a shard of its own.
[[nodiscard]] std::vector<std::vector<std::size_t>> plan_shards(
    std::span<const std::uint64_t> tensor_bytes, std::uint64_t shard_bytes);

/// Throws Error: kInvalidArgument for what the format cannot hold, ENOSPC before the first byte
/// where the shards do not fit. Then the index that was there is as it was, with its shards. Any
/// thread; the tensors must not change meanwhile.
void save_index(Engine& engine, const FileSystem& files, const std::string& path,
                NamedTensors tensors, const IndexOptions& options = {});

}  // namespace penstock::state
