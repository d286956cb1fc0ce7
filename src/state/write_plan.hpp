// SPDX-License-Identifier: Apache-2.0
// In which pieces, and in which order, a FileImage goes to the device: pure, so that the model of a
// disk can be given the very requests of a save (benchmarks/src/checkpoint_model.cpp).
#pragma once

#include "base/align.hpp"
#include "state/file_image.hpp"

#include <penstock/engine.hpp>

#include <cstdint>
#include <vector>

namespace penstock::state {

/// A transfer of so much keeps a device busy for a while and is a small step of the progress.
inline constexpr std::uint64_t kWriteTransferBytes = 16 * base::kMiB;
/// With the engine, sent off or waiting there: enough that it never runs dry.
inline constexpr std::uint64_t kWriteWindowBytes = 128 * base::kMiB;

/// Ranges of the file, a transfer each, that share no block of the device.
struct WritePlan {
    std::vector<format::FileRange> free;     ///< hold no sums: they go first
    std::vector<format::FileRange> waiting;  ///< do, in the order of the file
};

[[nodiscard]] WritePlan write_plan(const FileImage& image, std::uint64_t block_bytes);
/// What a range is made of: payloads, literals and zeros, each where it lies in memory. The image
/// must outlive it.
[[nodiscard]] std::vector<Extent> extents_of(const FileImage& image, format::FileRange range);

}  // namespace penstock::state
