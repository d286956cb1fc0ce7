// SPDX-License-Identifier: Apache-2.0
// Checksums of a store: XXH3 of 64 bits over a chunk, bound to its place, so that a chunk of
// another shard, offset or generation does not match.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock::stream {

/// Bytes that are summed with the CRC-32 of zip files as one piece. Any size would do, since CRCs
/// of pieces can be combined; this one keeps all cores busy to the end.
inline constexpr std::uint64_t kCrcPieceBytes = std::uint64_t{1} << 20;

/// XXH3, 64 bits, no seed.
[[nodiscard]] std::uint64_t content_hash(std::span<const std::byte> bytes);

/// The checksum bound to the chunk's place. `offset`: of its first byte in the file.
[[nodiscard]] std::uint64_t bind(std::uint64_t content, std::string_view shard_id,
                                 std::uint64_t generation, std::uint64_t offset);

}  // namespace penstock::stream
