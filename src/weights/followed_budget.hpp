// SPDX-License-Identifier: Apache-2.0
// A budget that follows what memory the process has left. Pure arithmetic.
//
// What is missing is given back at once, in steps of 1/16 of the budget or more, so that few
// changes do it. What is spare is taken by halves, at the beginning of a pass: a larger budget has
// to be read first, and others may want the rest.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::weights {

struct FollowedBudget {
    std::uint64_t budget = 0;  ///< now
    std::int64_t spare = 0;    ///< SpareMemory
    std::uint64_t least = 0;   ///< the budget never goes below it
    std::uint64_t most = 0;    ///< more has no use
    bool may_grow = false;
};

/// The next budget; nothing: it stays.
[[nodiscard]] std::optional<std::uint64_t> followed_budget(const FollowedBudget& now);

}  // namespace penstock::weights
