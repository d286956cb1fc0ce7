// SPDX-License-Identifier: Apache-2.0
// Tensors that change, or go, while a save writes them from the caller's own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace penstock {

/// The answer of a save to a tensor that changes while it is written.
enum class Changing : std::uint8_t {
    /// The save fails with kChanged, and names the tensor. Nothing is committed, nothing removed.
    /// Memory is summed right before and right after each piece of some MiB is written. So a change
    /// is seen, unless it is made and undone between those two. A state of up to 256 MiB on the
    /// host is written from copies of some MiB at a time: its file is sound in any case. A save in
    /// the background compares eight words of each tensor on the host with those at its call, too:
    /// a tensor that was changed as a whole before it is first read is seen.
    kFails,
    /// The save takes what it finds, as torch.save() does: a tensor may be half old, half new. The
    /// file is sound: its checksums are those of the bytes that were written, because each piece is
    /// copied first, and written from the copy. That takes some 150 MB at most, and some 32 MiB
    /// for a state of up to 256 MiB.
    kTorn,
};

/// Called before bytes of tensors are read, with their numbers in State::tensors, from any thread
/// and from several at once. Returns the first of them whose memory is not what it was at the call
/// of save() (freed, or resized), or nothing: that save fails with kChanged. It may not throw.
/// Memory that goes between the look and the read is not noticed.
using MemoryLook = std::function<std::optional<std::size_t>(std::span<const std::size_t> tensors)>;

}  // namespace penstock
