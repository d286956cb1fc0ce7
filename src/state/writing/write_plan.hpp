// SPDX-License-Identifier: Apache-2.0
// The pieces of a FileImage, and the order in which they are written: pure, so that the model of a
// disk can use the exact requests of a save (benchmarks/src/checkpoint_model.cpp).
#pragma once

#include "base/align.hpp"
#include "state/writing/file_image.hpp"

#include <penstock/engine.hpp>

#include <cstdint>
#include <vector>

namespace penstock::state {

/// Limit on the bytes with the engine, running or waiting: enough that it never runs dry.
inline constexpr std::uint64_t kWriteWindowBytes = 128 * base::kMiB;

/// Ranges of the file, one transfer each, that share no block of the device.
struct WritePlan {
    std::vector<format::FileRange> free;     ///< hold no sums: they go first
    std::vector<format::FileRange> waiting;  ///< hold sums, in the order of the file
};

[[nodiscard]] WritePlan write_plan(const FileImage& image, std::uint64_t block_bytes);
/// The extents of a range: payloads, literals and zeros, each with its memory. The image must
/// outlive it.
[[nodiscard]] Extent extent_of(const FileImage& image, const format::PieceSlice& slice);
[[nodiscard]] std::vector<Extent> extents_of(const FileImage& image, format::FileRange range);

}  // namespace penstock::state
