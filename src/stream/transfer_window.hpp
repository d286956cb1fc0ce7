// SPDX-License-Identifier: Apache-2.0
// Transfers of one caller that are under way together, taken in their order, with a limit on their
// bytes. The caller's progress is told, and an error raised, while it waits for them.
#pragma once

#include "stream/progress_clock.hpp"

#include <penstock/engine.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace penstock::stream {

class TransferWindow {
public:
    TransferWindow(Engine& engine, std::uint64_t bytes_max, ProgressClock& progress)
        : engine_(engine), bytes_max_(bytes_max), progress_(progress) {}
    TransferWindow(const TransferWindow&) = delete;
    TransferWindow& operator=(const TransferWindow&) = delete;
    /// Cancels what is under way and waits for it: nobody looks at the caller's memory afterwards.
    ~TransferWindow();

    /// Waits until there is room, here and in the engine. `bytes`: of the request. A request that
    /// `may_run` may be done on this thread.
    void send(const TransferRequest& request, std::uint64_t bytes, bool may_run = false);
    /// What is through already, without waiting.
    void collect();
    /// Until the oldest is through.
    void await_oldest();
    [[nodiscard]] bool empty() const { return sent_.empty(); }
    /// So many of those that were sent are through.
    [[nodiscard]] std::size_t arrived() const { return arrived_; }

private:
    struct Sent {
        Transfer transfer;
        std::uint64_t bytes;
    };

    void drop_oldest();

    Engine& engine_;
    const std::uint64_t bytes_max_;
    ProgressClock& progress_;
    std::deque<Sent> sent_;
    std::uint64_t bytes_ = 0;
    std::size_t arrived_ = 0;
};

}  // namespace penstock::stream
