// SPDX-License-Identifier: Apache-2.0
#include "weights/followed_budget.hpp"

#include <penstock/machine.hpp>
#include <penstock/weight_stream.hpp>

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

}  // namespace weights

SpareMemory spare_memory(std::uint64_t reserve_bytes) {
    static constexpr auto kMost = static_cast<std::uint64_t>(INT64_MAX);
    const auto reserve = static_cast<std::int64_t>(std::min(reserve_bytes, kMost));
    return [reserve] {
        return static_cast<std::int64_t>(std::min(available_memory_bytes(), kMost)) - reserve;
    };
}

}  // namespace penstock
