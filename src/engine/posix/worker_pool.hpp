// SPDX-License-Identifier: Apache-2.0
// The threads of a posix backend, and both ways between them and the channel.
#pragma once

#include "base/clock.hpp"
#include "base/intrusive.hpp"
#include "engine/request.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::engine {

class WorkerPool {
public:
    explicit WorkerPool(std::uint32_t threads_max) : threads_max_(threads_max) {
        threads_.reserve(threads_max);
    }
    ~WorkerPool();
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    /// Gives the pool work: `count` requests, in order.
    void hand_over(base::Fifo<Request>& requests, std::uint32_t count);
    /// The finished requests, oldest first. The channel's thread only.
    [[nodiscard]] base::Fifo<Request> take_finished() { return inbox_.take_all(); }
    /// How many were ever finished; wraps.
    [[nodiscard]] std::uint32_t finished() const { return finished_.load(); }

    /// Sleeps until finished() has reached `count`, wake() was called or `timeout` is over.
    void sleep_until(std::uint32_t count, base::Nanos timeout);
    void wake();

    [[nodiscard]] std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint32_t threads() const {
        return thread_count_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint32_t threads_max() const { return threads_max_; }

private:
    void work();
    [[nodiscard]] Request* next();
    void finish(Request& request, std::int64_t result);
    void grow_to(std::uint32_t busy);
    [[nodiscard]] bool start_thread();

    const std::uint32_t threads_max_;

    std::mutex mutex_;
    std::condition_variable work_came_;
    base::Fifo<Request> queue_;  // under mutex_
    std::uint32_t queued_ = 0;   // under mutex_
    std::uint32_t idle_ = 0;     // under mutex_
    bool stopping_ = false;      // under mutex_

    base::Inbox<Request> inbox_;
    std::atomic<std::uint32_t> finished_{0};
    std::atomic<std::uint32_t> events_{0};
    std::atomic<std::uint32_t> wake_at_{0};
    std::atomic<bool> sleeping_{false};
    std::atomic<bool> woken_{false};

    std::atomic<std::uint64_t> calls_{0};
    std::vector<std::thread> threads_;  // the channel's thread only
    std::atomic<std::uint32_t> thread_count_{0};
};

}  // namespace penstock::engine
