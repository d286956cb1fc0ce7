// SPDX-License-Identifier: Apache-2.0
#include "tier/budget.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>
#include <penstock/weights.hpp>

#include <algorithm>

namespace penstock {

namespace tier {

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

std::optional<std::uint64_t> Budget::next(std::uint64_t least, std::uint64_t most, bool may_grow) {
    const auto now = Clock::now();
    if (!next_ && spare_ && now - asked_ >= interval_) {
        asked_ = now;
        next_ = followed_budget({.budget = bytes_,
                                 .spare = spare_(),
                                 .least = least,
                                 .most = most,
                                 .may_grow = may_grow});
    }
    return next_;
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

}  // namespace tier

namespace {

constexpr auto kMost = static_cast<std::uint64_t>(INT64_MAX);

std::int64_t more_than(std::uint64_t bytes, std::uint64_t reserve) {
    return static_cast<std::int64_t>(std::min(bytes, kMost)) -
           static_cast<std::int64_t>(std::min(reserve, kMost));
}

}  // namespace

SpareMemory spare_gpu_memory(std::int32_t gpu, std::uint64_t reserve_bytes) {
    return [gpu, reserve_bytes] { return more_than(free_gpu_memory(gpu), reserve_bytes); };
}

SpareMemory spare_memory(std::uint64_t reserve_bytes) {
    tier::PressureWatch watch;
    static_cast<void>(watch.pressed(memory_stall(), std::chrono::steady_clock::now()));
    return [reserve_bytes, watch]() mutable {
        const std::int64_t left = more_than(available_memory_bytes(), reserve_bytes);
        const bool pressed = watch.pressed(memory_stall(), std::chrono::steady_clock::now());
        return pressed ? std::min<std::int64_t>(left, -1) : left;
    };
}

}  // namespace penstock
