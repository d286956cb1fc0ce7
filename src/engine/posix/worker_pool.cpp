// SPDX-License-Identifier: Apache-2.0
#include "engine/posix/worker_pool.hpp"

#include "base/futex.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>

namespace penstock::engine {

WorkerPool::~WorkerPool() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_came_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void WorkerPool::hand_over(base::Fifo<Request>& requests, std::uint32_t count) {
    std::uint32_t queued = 0;
    std::uint32_t idle = 0;
    {
        const std::lock_guard lock(mutex_);
        queue_.take(requests);
        queued_ += count;
        queued = queued_;
        idle = idle_;
    }
    for (std::uint32_t i = 0; i < std::min(count, idle); ++i) {
        work_came_.notify_one();
    }
    if (queued > idle) {
        grow_to(threads() + queued - idle);
    }
}

void WorkerPool::grow_to(std::uint32_t wanted) {
    while (threads() < std::min(wanted, threads_max_)) {
        if (start_thread()) {
            continue;
        }
        // Fewer threads are only slower; none at all would hang, and the caller may try again.
        while (threads() == 0) {
            Request* request = nullptr;
            {
                const std::lock_guard lock(mutex_);
                request = queue_.pop_front();
                queued_ -= request != nullptr ? 1 : 0;
            }
            if (request == nullptr) {
                return;
            }
            finish(*request, -EAGAIN);
        }
        return;
    }
}

bool WorkerPool::start_thread() {
    // Signals are for the threads of the program.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
        threads_.emplace_back([this] { work(); });
        pthread_setname_np(threads_.back().native_handle(), "penstock-posix");
        thread_count_.fetch_add(1, std::memory_order_relaxed);
    } catch (const std::exception&) {  // no thread, or no memory for it
        started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

void WorkerPool::work() {
    while (Request* request = next()) {
        calls_.fetch_add(1, std::memory_order_relaxed);
        os::File& file = *request->file;
        const std::int64_t result =
            request->op == Op::kRead ? file.read_at(request->io, request->offset, request->pieces)
                                     : file.write_at(request->io, request->offset, request->pieces);
        finish(*request, result);
    }
}

// Sleeps until there is work; null at the end.
Request* WorkerPool::next() {
    std::unique_lock lock(mutex_);
    ++idle_;
    work_came_.wait(lock, [this] { return !queue_.empty() || stopping_; });
    --idle_;
    Request* request = queue_.pop_front();
    queued_ -= request != nullptr ? 1 : 0;
    return request;
}

void WorkerPool::finish(Request& request, std::int64_t result) {
    request.result = result;
    inbox_.put(request);
    const std::uint32_t finished = finished_.fetch_add(1) + 1;
    if (sleeping_.load() && static_cast<std::int32_t>(finished - wake_at_.load()) >= 0) {
        events_.fetch_add(1);
        base::futex_wake_all(events_);
    }
}

void WorkerPool::sleep_until(std::uint32_t count, base::Nanos timeout) {
    const base::SteadyClock clock;
    const base::Nanos start = timeout == base::kForever ? 0 : clock.now();
    wake_at_.store(count);
    sleeping_.store(true);
    for (;;) {
        const std::uint32_t event = events_.load();
        if (static_cast<std::int32_t>(finished_.load() - count) >= 0 || woken_.load()) {
            break;
        }
        base::Nanos left = timeout;
        if (timeout != base::kForever) {
            left = timeout - (clock.now() - start);
            if (left <= 0) {
                break;
            }
        }
        base::futex_wait(events_, event, left);
    }
    sleeping_.store(false);
    woken_.exchange(false);
}

void WorkerPool::wake() {
    woken_.store(true);
    events_.fetch_add(1);
    if (sleeping_.load()) {
        base::futex_wake_all(events_);
    }
}

}  // namespace penstock::engine
