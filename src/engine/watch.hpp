// SPDX-License-Identifier: Apache-2.0
// Reports which of several transfers has finished first.
//
//   Watch   stands for one transfer; a transfer has at most one at a time
//   Ends    takes the watches of transfers that have finished, in the order of their ends
//
// A transfer that finishes pushes its watch on a list without a lock: nothing here can be held at a
// fork(). Watches live in what their Ends is part of, so a watch keeps its Ends alive until then.
#pragma once

#include "base/clock.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

namespace penstock::engine {

class Ends;

struct Watch {
    Watch* next = nullptr;
    std::shared_ptr<Ends> ends;  ///< while it is watched

    /// The transfer has finished. Afterwards the watch belongs to who takes it.
    void ended() noexcept;
};

class Ends {
public:
    /// Any thread: the next wait(), or the one that sleeps, returns.
    void wake() noexcept;
    /// The oldest end that was not taken yet, or nullptr. One thread at a time, as wait().
    [[nodiscard]] Watch* take() noexcept;
    /// After take() had none: until there is one, wake() or the time is over. May return early.
    void wait(base::Nanos timeout) noexcept;

private:
    friend struct Watch;
    void push(Watch& watch) noexcept;

    std::atomic<Watch*> newest_{nullptr};
    std::atomic<std::uint32_t> changes_{0};
    std::atomic<bool> sleeping_{false};
    Watch* oldest_ = nullptr;  // taken off the list, in the order of their ends
    std::uint32_t seen_ = 0;   // changes
};

}  // namespace penstock::engine
