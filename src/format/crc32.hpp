// SPDX-License-Identifier: Apache-2.0
// The CRC-32 of zip (polynomial 0x04C11DB7, reflected), and of two pieces put together.
//
// Own code, because a checkpoint is checksummed at the speed of memory: with the carry-less
// multiply that x86-64 has had since 2010 a core does more than 10 GB/s, zlib 1.2 under 3, and
// combining is twenty lines. Without that instruction it goes eight bytes at a time by tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::format {

/// The CRC of `bytes` that follow bytes with the CRC `before`: crc32(b, crc32(a)) is that of a and
/// b.
[[nodiscard]] std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The CRC of two pieces, from their CRCs and the length of the second: pieces may be summed in any
/// order, by any number of threads.
[[nodiscard]] std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                                          std::uint64_t second_bytes);

/// The path without the instruction; for tests.
[[nodiscard]] std::uint32_t crc32_by_tables(std::span<const std::byte> bytes,
                                            std::uint32_t before = 0);

}  // namespace penstock::format
