// SPDX-License-Identifier: Apache-2.0
#include "store/background/save_queue.hpp"

#include "base/assert.hpp"
#include "base/eventfd.hpp"
#include "base/futex.hpp"
#include "base/raise.hpp"
#include "base/wait_slice.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::store {

namespace {

// Returns std::bad_alloc when there is no memory for the error.
std::exception_ptr cancelled_error(const std::string& name, const char* message) noexcept {
    try {
        throw Error(ErrorCode::kCancelled, 0, "save", name, kNoOffset, message);
    } catch (...) {
        return std::current_exception();
    }
}

// Starts the queue's thread. A save cannot do without it: the work may wait for what its caller
// does next.
std::thread thread_of(const std::function<void()>& loop) {
    try {
        return std::thread(loop);
    } catch (const std::system_error& error) {
        base::raise(base::refused_thread(error, "start thread",
                                         ", or save without save_async: the save has not begun"));
    }
}

}  // namespace

PendingSave::PendingSave(std::string name, bool staged)
    : pid_(::getpid()),
      name_(std::move(name)),
      state_(static_cast<std::uint32_t>(staged ? State::kStaged : State::kQueued)) {}

PendingSave::~PendingSave() {
    for (Watcher* one = watchers_.exchange(nullptr); one != nullptr;) {
        delete std::exchange(one, one->next);
    }
}

// An end that is seen by neither the push nor settle() is not possible: settle() takes the list
// after it has set the state, and the state is read after the push.
void PendingSave::notify(int eventfd) {
    if (!base::is_eventfd(eventfd)) {
        throw Error(ErrorCode::kInvalidArgument, 0, "save", name_, kNoOffset,
                    fmt::format("notify: descriptor {} is not an open eventfd", eventfd));
    }
    // One of ours: the caller may close his when the save is over, just before it is written to.
    auto made_now = std::make_unique<Watcher>();
    made_now->eventfd = base::UniqueFd(::fcntl(eventfd, F_DUPFD_CLOEXEC, 0));
    if (made_now->eventfd.get() < 0) {
        base::raise(base::system_error(errno, "notify", name_));
    }
    made_now->next = watchers_.load();
    auto* const made = made_now.release();
    while (!watchers_.compare_exchange_weak(made->next, made)) {
    }
    if (done()) {
        wake_watchers();
    }
}

void PendingSave::wake_watchers() noexcept {
    for (Watcher* one = watchers_.exchange(nullptr); one != nullptr;) {
        base::add_one(one->eventfd.get());
        delete std::exchange(one, one->next);
    }
}

bool PendingSave::cancelled() const noexcept {
    return state() == State::kFailed &&
           (cancelled_.load(std::memory_order_relaxed) || !of_this_process());
}

bool PendingSave::of_this_process() const noexcept {
    return pid_ == ::getpid();
}

PendingSave::State PendingSave::state() const noexcept {
    const auto state = static_cast<State>(state_.load(std::memory_order_acquire));
    return state < State::kDurable && !of_this_process() ? State::kFailed : state;
}

bool PendingSave::wait_past(State limit, std::chrono::nanoseconds timeout) const {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (state() <= limit) {
        const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
        if (left.count() <= 0) {
            return false;
        }
        const std::uint32_t seen = state_.load(std::memory_order_acquire);
        if (seen <= static_cast<std::uint32_t>(limit)) {
            base::futex_wait(state_, seen, left.count());
        }
    }
    return true;
}

bool PendingSave::wait_staged(std::chrono::nanoseconds timeout) const {
    return wait_past(State::kQueued, timeout);
}

bool PendingSave::wait_done(std::chrono::nanoseconds timeout) const {
    return wait_past(State::kStaged, timeout);
}

std::exception_ptr PendingSave::failure() noexcept {
    if (state() != State::kFailed) {
        return nullptr;
    }
    told_.store(true, std::memory_order_relaxed);
    if (static_cast<State>(state_.load(std::memory_order_acquire)) == State::kFailed) {
        return failure_;
    }
    return cancelled_error(
        name_, "this save belongs to the process that began it, and goes on there; ask there");
}

void PendingSave::cancel() noexcept {
    cancelled_.store(true, std::memory_order_relaxed);
}

Progress PendingSave::progress(Progress also) {
    return [this, also = std::move(also)](std::uint64_t done, std::uint64_t total) {
        done_bytes_.store(done, std::memory_order_relaxed);
        total_bytes_.store(total, std::memory_order_relaxed);
        return !cancelled_.load(std::memory_order_relaxed) && (!also || also(done, total));
    };
}

void PendingSave::settle(std::exception_ptr failure) noexcept {
    PENSTOCK_ASSERT(!done());  // a save ends once
    const State state = failure == nullptr ? State::kDurable : State::kFailed;
    failure_ = std::move(failure);
    if (cancelled_.load(std::memory_order_relaxed)) {
        told_.store(true, std::memory_order_relaxed);
    }
    state_.store(static_cast<std::uint32_t>(state));
    base::futex_wake_all(state_);
    wake_watchers();
}

struct SaveQueue::Impl {
    Impl() = default;
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl() {
        {
            const std::lock_guard<std::mutex> guard(mutex);
            stop = true;
        }
        wake.notify_all();
        if (thread.joinable()) {
            thread.join();
        }
    }

    struct Entry {
        Work work;
        std::shared_ptr<PendingSave> save;
    };

    void loop() {
        std::unique_lock<std::mutex> lock(mutex);
        while (true) {
            wake.wait(lock, [this] { return stop || !entries.empty(); });
            if (entries.empty()) {
                return;
            }
            PENSTOCK_ASSERT(running == nullptr);  // saves are in order
            Entry entry = std::move(entries.front());
            entries.pop_front();
            running = entry.save;
            lock.unlock();
            std::exception_ptr failure = run(entry);
            // Frees the memory of the save before it is reported as done: a caller that waits for
            // one save and begins the next finds room in the budget.
            entry.work = nullptr;
            lock.lock();
            // Adds the save to the list before its failure is visible to waiters.
            if (failure != nullptr) {
                PENSTOCK_ASSERT(failures.size() < failures.capacity());  // reserved by add()
                failures.push_back(entry.save);
            }
            entry.save->settle(std::move(failure));
            running.reset();
            if (entries.empty()) {
                idle.notify_all();
            }
        }
    }

    static std::exception_ptr run(Entry& entry) {
        try {
            if (entry.save->cancelled_.load(std::memory_order_relaxed)) {
                return cancelled_error(entry.save->name(), "the save was cancelled");
            }
            entry.work(*entry.save);
        } catch (...) {
            return std::current_exception();
        }
        return nullptr;
    }

    std::mutex mutex;
    std::condition_variable wake;
    std::condition_variable idle;
    std::deque<Entry> entries;
    std::shared_ptr<PendingSave> running;
    std::vector<std::shared_ptr<PendingSave>> failures;  ///< not reported to the caller yet
    bool stop = false;
    std::thread thread;
};

SaveQueue::SaveQueue() : impl_([] { return std::make_shared<Impl>(); }) {}

SaveQueue::~SaveQueue() = default;

std::shared_ptr<PendingSave> SaveQueue::add(Work work, std::string name, bool staged) {
    Impl& own = *impl_;
    auto save = std::make_shared<PendingSave>(std::move(name), staged);
    {
        const std::lock_guard<std::mutex> guard(own.mutex);
        if (!own.thread.joinable()) {
            own.thread = thread_of([&own] { own.loop(); });
        }
        // Reserves room for its failure, too: the queue's thread cannot report a lack of memory.
        own.failures.reserve(own.failures.size() + own.entries.size() + 2);
        own.entries.push_back({std::move(work), save});
    }
    own.wake.notify_one();
    return save;
}

bool SaveQueue::wait_idle(std::chrono::nanoseconds timeout) {
    Impl& own = *impl_;
    std::unique_lock<std::mutex> lock(own.mutex);
    return own.idle.wait_for(lock, timeout,
                             [&] { return own.entries.empty() && own.running == nullptr; });
}

void SaveQueue::finish() {
    while (!wait_idle(base::kWaitSlice)) {
    }
}

std::size_t SaveQueue::in_flight() {
    Impl& own = *impl_;
    const std::lock_guard<std::mutex> guard(own.mutex);
    return own.entries.size() + (own.running != nullptr ? 1 : 0);
}

std::shared_ptr<PendingSave> SaveQueue::take_failure() {
    Impl& own = *impl_;
    const std::lock_guard<std::mutex> guard(own.mutex);
    auto& list = own.failures;
    list.erase(std::remove_if(list.begin(), list.end(), [](const auto& s) { return s->told(); }),
               list.end());
    if (list.empty()) {
        return nullptr;
    }
    std::shared_ptr<PendingSave> first = std::move(list.front());
    list.erase(list.begin());
    first->told_.store(true, std::memory_order_relaxed);
    return first;
}

void SaveQueue::cancel_all() {
    Impl& own = *impl_;
    const std::lock_guard<std::mutex> guard(own.mutex);
    for (const auto& entry : own.entries) {
        entry.save->cancel();
    }
    if (own.running) {
        own.running->cancel();
    }
}

}  // namespace penstock::store

namespace penstock {

PendingSave::PendingSave(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& PendingSave::name() const {
    return impl_->save->name();
}

PendingSave::State PendingSave::state() const {
    return impl_->save->state();
}

bool PendingSave::staged() const {
    return impl_->save->staged();
}

bool PendingSave::done() const {
    return impl_->save->done();
}

bool PendingSave::wait_staged(std::chrono::nanoseconds timeout) const {
    return impl_->save->wait_staged(timeout);
}

bool PendingSave::wait(std::chrono::nanoseconds timeout) const {
    return impl_->save->wait_done(timeout);
}

CheckpointInfo PendingSave::result() const {
    while (!wait()) {
    }
    if (const std::exception_ptr failed = failure()) {
        std::rethrow_exception(failed);
    }
    return *impl_->info;
}

std::exception_ptr PendingSave::failure() const {
    return done() ? impl_->save->failure() : nullptr;
}

void PendingSave::cancel() {
    impl_->save->cancel();
}

bool PendingSave::cancelled() const {
    return impl_->save->cancelled();
}

void PendingSave::notify(int eventfd) const {
    impl_->save->notify(eventfd);
}

std::uint64_t PendingSave::done_bytes() const {
    return impl_->save->done_bytes();
}

std::uint64_t PendingSave::total_bytes() const {
    return impl_->save->total_bytes();
}

const std::string& PendingSave::note() const {
    return impl_->note;
}

double PendingSave::waited_s() const {
    return impl_->waited_s;
}

}  // namespace penstock
