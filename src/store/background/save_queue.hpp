// SPDX-License-Identifier: Apache-2.0
// Saves in the background: one thread runs them one after another, in the order in which they were
// given, so that a later checkpoint never exists before an earlier one.
//
//     kQueued ---- the tensors are still needed; skipped when a copy was made ----+
//        |                                                                        |
//     kStaged ---- the tensors may change ----------------------------------------+
//        |                                                                        |
//     kDurable                                                                 kFailed
//
// A failure is kept until it is reported: by result(), or by take_failure() before the next save.
// In the child of a fork the thread and its work belong to the parent: there, saves of the parent
// count as failed, and a new, empty queue begins.
#pragma once

#include "base/of_process.hpp"
#include "base/unique_fd.hpp"

#include <penstock/checkpoint.hpp>

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace penstock::store {

/// One save. Thread-safe; nothing in it takes a lock.
class PendingSave {
public:
    using State = penstock::PendingSave::State;

    PendingSave(std::string name, bool staged);
    PendingSave(const PendingSave&) = delete;
    PendingSave& operator=(const PendingSave&) = delete;
    ~PendingSave();

    /// Name for messages: "step 100", "model.pt".
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] State state() const noexcept;
    /// The tensors may change.
    [[nodiscard]] bool staged() const noexcept { return state() != State::kQueued; }
    /// Durable or failed.
    [[nodiscard]] bool done() const noexcept { return state() >= State::kDurable; }
    /// False when the time is over.
    [[nodiscard]] bool wait_staged(std::chrono::nanoseconds timeout) const;
    [[nodiscard]] bool wait_done(std::chrono::nanoseconds timeout) const;
    /// The error it failed with, or nullptr; marks the failure as reported.
    [[nodiscard]] std::exception_ptr failure() noexcept;
    [[nodiscard]] bool told() const noexcept { return told_.load(std::memory_order_relaxed); }
    /// Over because of cancel(), or because it is a save of the parent of this process.
    [[nodiscard]] bool cancelled() const noexcept;
    /// Adds 1 to an eventfd, which the caller may close before, when it is done, or at once. Throws
    /// kInvalidArgument for another descriptor, std::bad_alloc.
    void notify(int eventfd);
    /// Stops at the next piece. The save fails with kCancelled, which is not reported again.
    void cancel() noexcept;

    [[nodiscard]] std::uint64_t done_bytes() const noexcept { return done_bytes_.load(); }
    [[nodiscard]] std::uint64_t total_bytes() const noexcept { return total_bytes_.load(); }
    /// Counts bytes for the work itself, and calls `also`; returns false once it is cancelled.
    [[nodiscard]] Progress progress(Progress also = {});

private:
    friend class SaveQueue;
    void settle(std::exception_ptr failure) noexcept;
    void wake_watchers() noexcept;
    [[nodiscard]] bool of_this_process() const noexcept;
    [[nodiscard]] bool wait_past(State state, std::chrono::nanoseconds timeout) const;
    struct Watcher {
        base::UniqueFd eventfd;
        Watcher* next = nullptr;
    };

    const pid_t pid_;
    const std::string name_;
    std::atomic<std::uint32_t> state_;
    std::atomic<bool> cancelled_{false};
    std::atomic<bool> told_{false};
    std::atomic<Watcher*> watchers_{nullptr};
    std::atomic<std::uint64_t> done_bytes_{0};
    std::atomic<std::uint64_t> total_bytes_{0};
    std::exception_ptr failure_;  ///< written before state_
};

/// Thread-safe. The destructor finishes the saves in the queue.
class SaveQueue {
public:
    /// Saves durably, or throws. Runs on the queue's thread and is destroyed there.
    using Work = std::function<void(PendingSave&)>;

    SaveQueue();
    SaveQueue(const SaveQueue&) = delete;
    SaveQueue& operator=(const SaveQueue&) = delete;
    ~SaveQueue();

    /// `staged`: the work does not need the caller's tensors. Throws Error if no thread can be
    /// started; then nothing was added.
    std::shared_ptr<PendingSave> add(Work work, std::string name, bool staged);
    /// Waits until every save is done; false when the time is over.
    [[nodiscard]] bool wait_idle(std::chrono::nanoseconds timeout);
    /// Waits until every save is done.
    void finish();
    /// Number of saves that are not done.
    [[nodiscard]] std::size_t in_flight();
    /// The first failed save that was not reported, marked as reported now; or nullptr.
    [[nodiscard]] std::shared_ptr<PendingSave> take_failure();
    /// Cancels every save that is not done.
    void cancel_all();

private:
    struct Impl;
    base::OfProcess<Impl> impl_;
};

}  // namespace penstock::store

namespace penstock {

/// The shared state behind the public handle of C++ users.
struct PendingSave::Impl {
    std::shared_ptr<store::PendingSave> save = nullptr;
    std::optional<CheckpointInfo> info = std::nullopt;  ///< written before it is done
    std::string note = {};
    double waited_s = 0;  ///< for room in the budget
};

}  // namespace penstock
