// SPDX-License-Identifier: Apache-2.0
#include "weights/stream/followed_budget.hpp"

#include <penstock/memory.hpp>
#include <penstock/weights.hpp>

#include <algorithm>

namespace penstock {

namespace weights {

std::optional<std::uint64_t> followed_budget(const FollowedBudget& now) {
    const std::uint64_t used = std::min(now.budget, now.most);
    const std::uint64_t step = used / 16;
    std::uint64_t next = used;
    if (now.spare < 0) {
        const std::uint64_t missing = std::uint64_t{0} - static_cast<std::uint64_t>(now.spare);
        next -= std::min(next, std::max(missing, step));
        next = std::max(next, std::min(now.least, used));
    } else if (now.may_grow) {
        const std::uint64_t more = static_cast<std::uint64_t>(now.spare) / 2;
        if (more > step) {
            next += std::min(more, now.most - used);
        }
    }
    return next == used ? std::nullopt : std::optional(next);
}

bool PressureWatch::pressed(std::optional<std::chrono::microseconds> stalled,
                            std::chrono::steady_clock::time_point now) noexcept {
    if (stalled_ && now - at_ < kTimeMin) {
        return pressed_;
    }
    pressed_ =
        stalled && stalled_ && *stalled > *stalled_ && (*stalled - *stalled_) * 10 > now - at_;
    stalled_ = stalled;
    at_ = now;
    return pressed_;
}

}  // namespace weights

SpareMemory spare_memory(std::uint64_t reserve_bytes) {
    static constexpr auto kMost = static_cast<std::uint64_t>(INT64_MAX);
    const auto reserve = static_cast<std::int64_t>(std::min(reserve_bytes, kMost));
    weights::PressureWatch watch;
    static_cast<void>(watch.pressed(memory_stall(), std::chrono::steady_clock::now()));
    return [reserve, watch]() mutable {
        const std::int64_t left =
            static_cast<std::int64_t>(std::min(available_memory_bytes(), kMost)) - reserve;
        const bool pressed = watch.pressed(memory_stall(), std::chrono::steady_clock::now());
        return pressed ? std::min<std::int64_t>(left, -1) : left;
    };
}

}  // namespace penstock
