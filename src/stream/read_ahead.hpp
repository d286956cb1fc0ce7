// SPDX-License-Identifier: Apache-2.0
// Looks at stretches of files in their order, piece by piece, in a memory of fixed size: while one
// piece is looked at the next ones are read. What cannot be read is reported, and the stretches
// after it are looked at all the same.
#pragma once

#include "stream/progress_clock.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace penstock::stream {

struct Stretch {
    File file;
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t bytes = 0;
    /// What is looked at together begins at a multiple of this, from the beginning of the stretch,
    /// and but for the end has so many bytes, or some times as many. 0: any number.
    std::uint64_t piece_bytes = 0;
};

/// The number of the stretch, where in it the bytes begin, and the bytes.
using LookAt =
    std::function<void(std::size_t stretch, std::uint64_t at, std::span<const std::byte> bytes)>;
/// Of a stretch that could not be read to its end; nothing of it is looked at afterwards.
using NotRead = std::function<void(std::size_t stretch, const Error& error)>;

/// Calls both on this thread. Throws Error: kCancelled from `progress`, kClosed of the engine.
void read_ahead(Engine& engine, std::span<const Stretch> stretches, const LookAt& look,
                const NotRead& not_read, ProgressClock& progress);

}  // namespace penstock::stream
