// SPDX-License-Identifier: Apache-2.0
// Reads stretches of files in order, piece by piece, in memory of fixed size, and passes each piece
// to a callback while the next ones are read. A read error is reported with the bytes that it
// cost, and what comes after them is still read. It serves verification, so it bypasses the page
// cache: a page there proves nothing of the device.
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
/// Bytes of a stretch that could not be read, in steps of 8 MiB or one piece, all that adjoin in
/// one call with the first error; they are not passed to LookAt.
using NotRead = std::function<void(std::size_t stretch, std::uint64_t at, std::uint64_t bytes,
                                   const Error& error)>;

/// Calls both on this thread, in the order of the bytes. Throws Error: kCancelled from `progress`,
/// kClosed from the engine, and what the callbacks throw.
void read_ahead(Engine& engine, std::span<const Stretch> stretches, const LookAt& look,
                const NotRead& not_read, ProgressClock& progress);

}  // namespace penstock::stream
