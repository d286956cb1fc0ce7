// SPDX-License-Identifier: Apache-2.0
// Which checkpoints of a store may go. Pure.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::store {

/// Indices of what goes, of checkpoints by rising generation: all that are older than the `keep`
/// newest whole ones (0: none goes) and neither pinned nor of a generation that `keep_every`
/// divides (0: none). What has a problem does not count as kept, and is not taken before its time:
/// a folder that is not there today may be there tomorrow.
[[nodiscard]] std::vector<std::size_t> outdated(std::span<const CheckpointInfo> checkpoints,
                                                std::uint32_t keep, std::uint32_t keep_every);

}  // namespace penstock::store
