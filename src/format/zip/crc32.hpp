// SPDX-License-Identifier: Apache-2.0
// The CRC-32 of zip (polynomial 0x04C11DB7, reflected), and of two pieces put together.
//
// Own code, because a checkpoint is checksummed at the speed of memory: with the carry-less
// multiply that x86-64 has had since 2010 a core does more than 10 GB/s, zlib 1.2 under 3, and
// combining is twenty lines. With that of AVX-512 (Ice Lake, Zen 4) it is as fast as memory is.
// With neither it goes eight bytes at a time by tables.
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

/// Means: tables, the instruction on 128 bits, or that on 512.
enum class CrcWay : std::uint8_t { kTables, kFolding, kWideFolding };

/// Returns what crc32() uses; a processor that can do one can do those before it.
[[nodiscard]] CrcWay best_crc_way();

/// The same sum by a certain way, which is no better than the best; for tests.
[[nodiscard]] std::uint32_t crc32_by(CrcWay way, std::span<const std::byte> bytes,
                                     std::uint32_t before = 0);

}  // namespace penstock::format
