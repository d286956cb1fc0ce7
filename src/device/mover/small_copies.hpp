// SPDX-License-Identifier: Apache-2.0
// The pinned memory, streams and events of small copies. They are made when they are needed, serve
// one caller after another, and are kept until the process ends.
#pragma once

#include "engine/caller/small_copy.hpp"

namespace penstock::device {

/// So many may be in use at once, of all GPUs; with that they have pinned 2 MiB.
inline constexpr unsigned kSmallCopiesMax = 32;

/// An engine::TakeSmallCopy.
[[nodiscard]] std::unique_ptr<engine::SmallCopy> take_small_copy(
    const Memory& memory, std::span<const StreamHandle> streams);

}  // namespace penstock::device
