// SPDX-License-Identifier: Apache-2.0
// Chooses the checkpoints of a store that may be removed. Pure.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::store {

/// Indices of the checkpoints to remove, by rising generation: all that are older than the `keep`
/// newest whole ones (0: none is removed) and neither pinned nor of a generation that `keep_every`
/// divides (0: none). A checkpoint with a problem does not count as kept, and is not removed early:
/// a folder that is missing today may be there tomorrow.
[[nodiscard]] std::vector<std::size_t> outdated(std::span<const CheckpointInfo> checkpoints,
                                                std::uint32_t keep, std::uint32_t keep_every);

}  // namespace penstock::store
