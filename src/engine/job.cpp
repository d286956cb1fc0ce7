// SPDX-License-Identifier: Apache-2.0
#include "engine/job.hpp"

#include "base/start_threads.hpp"

#include <pthread.h>

namespace penstock::engine {

Workers::~Workers() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

// The thread comes before the job: what is linked is done, and by nobody but a thread that is
// there.
void Workers::post(Job& job) noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (queued_ + 1 > idle_ && threads_.size() < threads_max_) {
            base::start_threads(threads_, threads_.size() + 1, [this] { loop(); });
        }
        if (!threads_.empty()) {
            jobs_.push_back(job);
            ++queued_;
            // Under the lock: the job may be the last, and its waiter may destroy this object.
            work_.notify_one();
            return;
        }
    }
    job.run(job);
}

void Workers::loop() noexcept {
    ::pthread_setname_np(::pthread_self(), name_);
    std::unique_lock lock(mutex_);
    while (true) {
        ++idle_;
        work_.wait(lock, [this] { return stopping_ || (!paused_ && !jobs_.empty()); });
        --idle_;
        if (jobs_.empty() || paused_) {
            return;  // stopping
        }
        Job& job = *jobs_.pop_front();
        --queued_;
        const std::uint32_t short_one = job.may_take_long ? 0 : 1;  // the job may be gone after it
        running_ += short_one;
        lock.unlock();
        job.run(job);
        lock.lock();
        running_ -= short_one;
        if (running_ == 0) {
            quiet_.notify_all();
        }
    }
}

void Workers::pause() {
    std::unique_lock lock(mutex_);
    paused_ = true;
    quiet_.wait(lock, [this] { return running_ == 0; });
}

void Workers::resume() {
    {
        const std::lock_guard lock(mutex_);
        paused_ = false;
    }
    work_.notify_all();
}

}  // namespace penstock::engine
