// SPDX-License-Identifier: Apache-2.0
// Reads stretches of files in order, piece by piece, in memory of fixed size, and passes each piece
// to a callback while the next ones are read. A read error is reported, and the stretches after it
// are still read. It serves verification, so it bypasses the page cache: a page there proves
// nothing of the device.
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
    /// Pieces begin at a multiple of this from the beginning of the stretch, and have this many
    /// bytes, or a multiple, except at the end. 0: any number.
    std::uint64_t piece_bytes = 0;
};

/// The index of the stretch, the offset of the bytes in it, and the bytes.
using LookAt =
    std::function<void(std::size_t stretch, std::uint64_t at, std::span<const std::byte> bytes)>;
/// A stretch that could not be read to its end; its remaining bytes are not passed on.
using NotRead = std::function<void(std::size_t stretch, const Error& error)>;

/// Calls both on this thread. Throws Error: kCancelled from `progress`, kClosed from the engine.
void read_ahead(Engine& engine, std::span<const Stretch> stretches, const LookAt& look,
                const NotRead& not_read, ProgressClock& progress);

}  // namespace penstock::stream
