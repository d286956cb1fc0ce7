// SPDX-License-Identifier: Apache-2.0
// Files that lie in several folders, one a device: which bytes are read from which copy, so that
// all devices are done at the same time. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::weights {

/// Bytes of a file, and where they go.
struct WantedBytes {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::byte* into = nullptr;
};

/// A part of them, and the folder whose copy it is read from.
struct CopyRead {
    WantedBytes part;
    std::uint32_t folder = 0;
};

/// The parts are as `wanted` together, in its order. `having`: of each file the folders that have
/// it, rising and at least one. `speeds`: of each folder, bytes a second, above 0. What one folder
/// alone has is its work; the rest is divided so that all folders end together. Parts are cut at
/// multiples of 64 KiB of the file.
[[nodiscard]] std::vector<CopyRead> share_reads(std::span<const WantedBytes> wanted,
                                                std::span<const std::vector<std::uint32_t>> having,
                                                std::span<const double> speeds);

}  // namespace penstock::weights
