// SPDX-License-Identifier: Apache-2.0
// Checksums of a store: XXH3 of 64 bits over a chunk, bound to the place it belongs to, so that a
// chunk of another shard, another offset or another generation does not pass for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock::stream {

/// What is summed with CRC-32 as one, as zip files have it. Any size would do, for CRCs of pieces
/// can be put together; this one keeps all cores busy to the end.
inline constexpr std::uint64_t kCrcPieceBytes = std::uint64_t{1} << 20;

/// XXH3, 64 bits, no seed.
[[nodiscard]] std::uint64_t content_hash(std::span<const std::byte> bytes);

/// Where a chunk belongs. `offset`: of its first byte in the file.
[[nodiscard]] std::uint64_t bind(std::uint64_t content, std::string_view shard_id,
                                 std::uint64_t generation, std::uint64_t offset);

}  // namespace penstock::stream
