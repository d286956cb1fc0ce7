// SPDX-License-Identifier: Apache-2.0
// A limit, shared by several transfers, on the requests that they have at one device together.
//
// Each channel of the device has an equal share of it, its seat, and counts what it has out on its
// own: nothing here is shared between channels while requests run. A part that finds its seat full
// is parked on it, and comes back into the channel's queues when one of the seat's requests is
// through, or a part of the seat has nothing more to draw. So: while a part is parked, its seat is
// full, or another part of the seat is queued. Parked parts go on in their order, of whatever flow.
//
// A seat belongs to its channel while parts use it, and then to whichever channel wants one.
#pragma once

#include "engine/transfer.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::engine {

/// All but `users` is the channel's own.
struct Seat {
    base::Link<Seat> link;  ///< in the channel's list of seats on which parts are parked
    const Channel* channel = nullptr;
    std::uint32_t most = 1;
    std::uint32_t out = 0;
    std::atomic<std::uint32_t> users{0};  ///< parts that are not done
    base::Fifo<Part> parked;              ///< oldest first

    [[nodiscard]] bool full() const { return out >= most; }
};

class DepthLimit {
public:
    explicit DepthLimit(std::uint32_t depth) : depth_(depth) {}
    [[nodiscard]] std::uint32_t depth() const { return depth_; }

    /// The seat of one of the `channels` channels of a device, for one part more: its channel takes
    /// it from `users` when it is done. Any thread.
    [[nodiscard]] Seat& seat(const Channel& channel, std::uint32_t channels);
    [[nodiscard]] std::size_t seats() const { return seats_.size(); }

    /// Guards the seats of all limits: fork() holds it, so that it is free in the child.
    [[nodiscard]] static std::mutex& mutex();

private:
    const std::uint32_t depth_;
    std::vector<std::unique_ptr<Seat>> seats_;
};

}  // namespace penstock::engine
