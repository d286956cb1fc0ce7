// SPDX-License-Identifier: Apache-2.0
#include "engine/depth_limit.hpp"

#include <algorithm>

namespace penstock::engine {

Seat& DepthLimit::seat(const Channel& channel, std::uint32_t channels) {
    const std::lock_guard lock(mutex_);
    for (const auto& seat : seats_) {
        if (seat->channel == &channel) {
            return *seat;
        }
    }
    seats_.push_back(std::make_unique<Seat>());
    Seat& seat = *seats_.back();
    seat.channel = &channel;
    seat.most = std::max(depth_ / channels, 1U);
    return seat;
}

}  // namespace penstock::engine
