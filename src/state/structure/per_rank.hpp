// SPDX-License-Identifier: Apache-2.0
// Values that each rank has for itself (ValueKind::kPerRank) in a tree.
#pragma once

#include "format/value.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::state {

/// Empty, or why the tree cannot be saved, with the place: one in another one, or a tensor in one
/// and outside of it, too, which would be both a rank's own and that of all.
[[nodiscard]] std::string wrong_per_rank(const format::ValueTree& tree);

/// Puts in the place of each what `rank` has there; nothing: a list of what the ranks 0 to
/// `count` - 1 have. Where a rank has nothing, a dict loses the key, and a list gets None.
void take_per_rank(format::ValueTree& tree, std::optional<std::uint32_t> rank, std::uint32_t count);

/// The place of the first that is left in what can be reached; nothing if none is left.
[[nodiscard]] std::optional<std::string> place_of_per_rank(const format::ValueTree& tree);

}  // namespace penstock::state
