// SPDX-License-Identifier: Apache-2.0
#include "engine/depth_limit.hpp"

#include <algorithm>

namespace penstock::engine {

Seat& DepthLimit::seat(const Channel& channel, std::uint32_t channels) {
    const std::lock_guard lock(mutex());
    Seat* unused = nullptr;
    for (const auto& seat : seats_) {
        const bool used = seat->users.load(std::memory_order_acquire) != 0;
        // The channel of a seat in use lives, so it is the one that has this address.
        if (used && seat->channel == &channel) {
            seat->users.fetch_add(1, std::memory_order_relaxed);
            return *seat;
        }
        unused = used ? unused : seat.get();
    }
    if (unused == nullptr) {
        unused = seats_.emplace_back(std::make_unique<Seat>()).get();
    }
    unused->channel = &channel;
    unused->most = std::max(depth_ / channels, 1U);
    unused->users.store(1, std::memory_order_relaxed);
    return *unused;
}

// Never destroyed: a fork may come while statics are torn down.
std::mutex& DepthLimit::mutex() {
    static auto* const instance = new std::mutex;
    return *instance;
}

}  // namespace penstock::engine
