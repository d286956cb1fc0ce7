// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: its tensors, where their bytes lie, and their checksums. A JSON
// text that ends in a checksum of itself; nothing in it is used before that matches.
//
// It knows global tensors: each has one slice or more, and a slice lies whole in one shard. Chunks
// are cut from the beginning of each slice, so that a tensor keeps its sums when it moves.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::uint64_t kChunkBytes = 256 << 10;
inline constexpr std::uint64_t kManifestBytesMax = std::uint64_t{1} << 30;

/// A file of tensors. It may be older than the checkpoint: linked from the one that wrote it.
struct Shard {
    std::string file;                ///< its name in the checkpoint's folder
    std::uint32_t folder = 0;        ///< index into Manifest::folders of its bytes; 0: here
    std::string id;                  ///< 32 hexadecimal digits, made when it was written
    std::uint64_t generation = 0;    ///< that wrote it
    std::uint64_t bytes = 0;         ///< of the file
    std::uint64_t header_bytes = 0;  ///< the header before the tensors
    std::uint64_t header_sum = 0;    ///< bound like a chunk at offset 0
};

struct Slice {
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> offset;  ///< elements, in the global tensor
    std::uint32_t shard = 0;
    std::uint64_t begin = 0;  ///< of its bytes, in the file
    std::uint64_t bytes = 0;
    std::uint64_t changed = 0;        ///< the generation in which its content changed last
    std::vector<std::uint64_t> sums;  ///< of each chunk, bound; empty without checksums
};

struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;  ///< global
    std::vector<Slice> slices;
};

struct Manifest {
    std::uint64_t generation = 0;
    std::uint64_t step = 0;
    std::int64_t saved_unix_ns = 0;
    std::uint32_t world = 1;  ///< processes that wrote it
    std::uint64_t written_bytes = 0;
    std::vector<std::string>
        folders;  ///< of shards that are not here: [1], [2], ... absolute paths; [0] is ""
    std::vector<Shard> shards;
    std::vector<Tensor> tensors;
    std::string structure = "null";
    CheckpointMetadata metadata;
    std::string store;  ///< the identity of the store that saved it; empty: none is known
};

/// Throws kInvalidArgument for a manifest that parse_manifest() would reject.
[[nodiscard]] std::string render(const Manifest& manifest);
/// Throws Error kDamaged with `path` for a text that is no manifest, a checksum mismatch and
/// impossible numbers (slices outside their shard or tensor, overlapping slices, a wrong number of
/// sums).
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& path);
/// The identity of the store in the text of a manifest; empty if it has none. Parses only that.
/// Throws Error kDamaged as parse_manifest() for a checksum mismatch.
[[nodiscard]] std::string identity_in(std::string_view text, const std::string& path);
/// Whether a rendered manifest has this structure, read from its text.
[[nodiscard]] bool holds_structure(std::string_view text, std::string_view structure);

}  // namespace penstock::store
