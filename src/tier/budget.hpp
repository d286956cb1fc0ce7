// SPDX-License-Identifier: Apache-2.0
// A budget of memory that changes: its owner sets it, or it follows what memory is left.
//
// Missing memory is given back at once, in steps of 1/16 of the budget or more, so that few
// changes do it. What is spare is taken by halves, at the beginning of a pass: a larger budget has
// to be read first, and others may want the rest.
#pragma once

#include <penstock/weights.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace penstock::tier {

struct FollowedBudget {
    std::uint64_t budget = 0;  ///< now
    std::int64_t spare = 0;    ///< SpareMemory
    std::uint64_t least = 0;   ///< the budget never goes below it
    std::uint64_t most = 0;    ///< more has no use
    bool may_grow = false;
};

/// The next budget; nothing: it stays.
[[nodiscard]] std::optional<std::uint64_t> followed_budget(const FollowedBudget& now);

/// One thread at a time.
class Budget {
public:
    Budget(std::uint64_t bytes, SpareMemory spare, std::chrono::nanoseconds interval)
        : bytes_(bytes), spare_(std::move(spare)), interval_(interval) {}

    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    /// It follows what is left, rather than being fixed.
    [[nodiscard]] bool follows() const { return static_cast<bool>(spare_); }
    /// Sets the next budget, and what it follows from then on.
    void set(std::uint64_t bytes, SpareMemory spare) {
        next_ = bytes;
        spare_ = std::move(spare);
    }
    /// The budget to change to, again until settle(); nothing: it stays. Asks `spare` at most once
    /// in the interval, unless set() gave the next one.
    [[nodiscard]] std::optional<std::uint64_t> next(std::uint64_t least, std::uint64_t most,
                                                    bool may_grow);
    /// The budget is this one now.
    void settle(std::uint64_t bytes) {
        bytes_ = bytes;
        next_.reset();
    }

private:
    using Clock = std::chrono::steady_clock;

    std::uint64_t bytes_;
    std::optional<std::uint64_t> next_;
    SpareMemory spare_;
    std::chrono::nanoseconds interval_;
    Clock::time_point asked_ = Clock::now();
};

/// Calls `use` with the next budget, and settles it. A budget that follows what is left may find
/// that others have taken it meanwhile: then less has to do, down to `least`. Throws what `use`
/// throws; the next budget then stays to be changed to.
template <typename Use>
void change_budget(Budget& budget, std::uint64_t bytes, std::uint64_t least, const Use& use) {
    for (;;) {
        try {
            use(bytes);
            budget.settle(bytes);
            return;
        } catch (const Error& error) {
            if (error.reason() != ErrorCode::kOutOfMemory || !budget.follows() || bytes <= least) {
                throw;
            }
            bytes = bytes > budget.bytes() ? budget.bytes() : std::max(least, bytes - bytes / 4);
        }
    }
}

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

}  // namespace penstock::tier
