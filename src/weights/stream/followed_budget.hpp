// SPDX-License-Identifier: Apache-2.0
// A budget that follows what memory the process has left. Pure arithmetic.
//
// Missing memory is given back at once, in steps of 1/16 of the budget or more, so that few
// changes do it. What is spare is taken by halves, at the beginning of a pass: a larger budget has
// to be read first, and others may want the rest.
#pragma once

#include <chrono>
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

/// Tells when threads wait for memory (memory_stall()). Memory that the kernel counts as available
/// may take so long to free that everything slows down.
class PressureWatch {
public:
    /// Whether they waited for more than a tenth of the time since the last call; after less than
    /// kTimeMin what the last call gave. `stalled`: nothing where the kernel does not count it.
    [[nodiscard]] bool pressed(std::optional<std::chrono::microseconds> stalled,
                               std::chrono::steady_clock::time_point now) noexcept;

    static constexpr std::chrono::milliseconds kTimeMin{50};

private:
    std::optional<std::chrono::microseconds> stalled_;
    std::chrono::steady_clock::time_point at_;
    bool pressed_ = false;
};

}  // namespace penstock::weights
