// SPDX-License-Identifier: Apache-2.0
#include "engine/transfer.hpp"

#include "base/assert.hpp"
#include "base/futex.hpp"
#include "engine/core.hpp"
#include "engine/watch.hpp"

#include <algorithm>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

namespace penstock::engine {

Transfer::Transfer(Core& core, Op operation, FileList&& its_files, Extents&& its_extents,
                   std::uint64_t bytes, bool may_be_short)
    : op(operation),
      allow_short(may_be_short),
      files(std::move(its_files)),
      extents(std::move(its_extents)),
      total_bytes(bytes),
      core_(core) {
    const std::uint64_t count = extents.count();
    if (allow_short || extents.sorted()) {
        ends_ = std::make_unique<std::atomic<std::uint64_t>[]>(count);
        for (std::uint64_t i = 0; i < count; ++i) {
            ends_[extents.listed(i)].store(extents[i].memory.bytes, std::memory_order_relaxed);
        }
    }
}

void Part::consult_cache(Counters& counters, bool caller_waits) {
    const CachePolicy policy = transfer->cache;
    if (policy == CachePolicy::kAuto || policy == CachePolicy::kCached) {
        lookup = CacheLookup(counters, caller_waits, transfer->has_missed);
        plan.consult(lookup, policy == CachePolicy::kCached);
    }
}

void Transfer::fail(base::Error error) noexcept {
    if ((state_.fetch_or(kFailing, std::memory_order_acq_rel) & kFailing) == 0) {
        error_ = std::move(error);
        state_.fetch_or(kStopped);
    }
}

void Transfer::cancel() noexcept {
    // finish() waits for the first caller, so that `files` stay until the error is written.
    if ((state_.fetch_or(kFailing, std::memory_order_acq_rel) & kFailing) == 0) {
        const std::string_view path = !paths.empty()  ? std::string_view(paths.front())
                                      : files.empty() ? std::string_view()
                                                      : files.front()->info().path;
        error_ =
            base::error(ErrorCode::kCancelled, op == Op::kRead ? "read" : "write",
                        "cancelled before it was through; the memory of a read and the extent of a "
                        "write are undefined",
                        path);
        state_.fetch_or(kStopped);
    }
}

TransferStatus Transfer::status() const {
    if (!finished()) {
        return TransferStatus::kRunning;
    }
    if (!error_) {
        return TransferStatus::kDone;
    }
    return error_->code == ErrorCode::kCancelled ? TransferStatus::kCancelled
                                                 : TransferStatus::kFailed;
}

bool Transfer::wait(base::Nanos timeout) const {
    return wait_for_any(kFinished, timeout);
}

bool Transfer::wait_settled(base::Nanos timeout) const {
    return wait_for_any(kFinished | kSettled, timeout);
}

bool Transfer::wait_for_any(std::uint32_t bits, base::Nanos timeout) const {
    if ((state() & bits) != 0) {
        return true;
    }
    const std::uint32_t seen = state_.fetch_or(kWaited, std::memory_order_acq_rel) | kWaited;
    if ((seen & bits) != 0) {
        return true;
    }
    base::futex_wait(state_, seen, timeout);
    return (state() & bits) != 0;
}

void Transfer::settle(std::uint64_t bytes) noexcept {
    if (stopped() ||
        settled_bytes_.fetch_add(bytes, std::memory_order_acq_rel) + bytes != total_bytes) {
        return;
    }
    if ((state_.fetch_or(kSettled, std::memory_order_acq_rel) & kWaited) != 0) {
        base::futex_wake_all(state_);
    }
}

// finish() sees either kNotifies or comes first; then it is for us to see that it has finished.
void Transfer::notify(base::SharedEventfd eventfd) {
    {
        const std::lock_guard lock(notify_mutex_);
        notify_.push_back(std::move(eventfd));
    }
    if ((state_.fetch_or(kNotifies, std::memory_order_acq_rel) & kFinished) != 0) {
        tell_eventfds();
    }
}

// Each of them once, by the thread that comes first.
void Transfer::tell_eventfds() noexcept {
    const std::lock_guard lock(notify_mutex_);
    for (const base::SharedEventfd& eventfd : notify_) {
        base::add_one(eventfd->get());
    }
    notify_.clear();
}

// finish() sees either the watch or no kWaited; then it is for us to see that it has finished.
void Transfer::watch(Watch& watch) noexcept {
    watch_.store(&watch);
    if ((state_.fetch_or(kWaited, std::memory_order_acq_rel) & kFinished) != 0) {
        tell_watch();
    }
}

void Transfer::tell_watch() noexcept {
    if (Watch* const watch = watch_.exchange(nullptr)) {
        watch->ended();
    }
}

void Transfer::note_end_of_file(const Draft& draft, std::uint64_t end_offset) {
    PENSTOCK_ASSERT(allow_short);
    const std::uint64_t wanted_end = draft.offset + draft.skip_bytes + draft.wanted_bytes;
    for (std::uint64_t i = draft.at.index, last = i + draft.extents;; ++i) {
        const Extent extent = extents[i];
        bool through = false;
        if (extent.memory.bytes != 0) {
            through = extent.offset + extent.memory.bytes >= wanted_end;
            const std::uint64_t bytes =
                end_offset <= extent.offset
                    ? 0
                    : std::min(extent.memory.bytes, end_offset - extent.offset);
            std::atomic<std::uint64_t>& end = ends_[extents.listed(i)];
            std::uint64_t known = end.load(std::memory_order_relaxed);
            while (bytes < known && !end.compare_exchange_weak(known, bytes)) {
            }
        }
        if (draft.extents == 0 ? through : i + 1 == last) {
            return;
        }
    }
}

void Transfer::expect_parts(Window& window) {
    window.parts_left.store(static_cast<std::uint32_t>(window.parts.size()),
                            std::memory_order_relaxed);
    // In one order with kStopped: either cancel() sees the parts and pokes their channels, or their
    // channels see that it is stopped.
    linked_.store(true);
}

void Transfer::part_done(const Part& part) noexcept {
    Window& window = *part.window;
    if (window.parts_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        core_.parts_done(window);
    }
}

void Transfer::finish() noexcept {
    // From here on it is too late to fail; who is writing an error just now gets to the end of
    // that.
    if ((state_.fetch_or(kFailing, std::memory_order_acq_rel) & kFailing) != 0) {
        while (!stopped()) {
            std::this_thread::yield();
        }
    }
    files.clear();  // a caller that has waited may unmount
    core_.finishing(*this);
    const std::uint32_t before = state_.fetch_or(kStopped | kFinished, std::memory_order_acq_rel);
    PENSTOCK_ASSERT((before & kFinished) == 0);
    if ((before & kNotifies) != 0) {
        tell_eventfds();
    }
    if ((before & kWaited) != 0) {
        base::futex_wake_all(state_);
        tell_watch();
    }
    if (error_ && (state() & kAbandoned) != 0) {
        tell_unobserved();
    }
    core_.finished(*this);
    release();
}

std::uint64_t Transfer::bytes_moved() const {
    if (!allow_short) {
        return total_bytes;
    }
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < extents.count(); ++i) {
        bytes += extent_bytes(i);
    }
    return bytes;
}

std::uint64_t Transfer::extent_bytes(std::uint64_t index) const {
    return ends_ ? ends_[index].load(std::memory_order_relaxed) : extents[index].memory.bytes;
}

void Transfer::release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        delete this;
    }
}

void Transfer::abandon() noexcept {
    const std::uint32_t before = state_.fetch_or(kAbandoned, std::memory_order_acq_rel);
    if ((before & kFinished) != 0) {
        tell_unobserved();
    }
}

// Called by finish() and abandon(): the second of them reports the error and gives it away, because
// the handle is gone. A requested cancel is not reported.
void Transfer::tell_unobserved() noexcept {
    if (error_ && error_->code != ErrorCode::kCancelled &&
        !observed_.exchange(true, std::memory_order_acq_rel)) {
        core_.unobserved(std::move(*error_));
    }
}

// A thread of the parent may have been at anything: what it may have locked or half written is made
// from scratch.
void Transfer::end_after_fork() noexcept {
    new (&notify_mutex_) std::mutex;
    if (!finished()) {
        new (&error_) std::optional<base::Error>(
            base::error(ErrorCode::kCancelled, op == Op::kRead ? "read" : "write",
                        "this transfer belongs to the parent process; a fork does not inherit it",
                        paths.empty() ? std::string_view() : std::string_view(paths.front())));
        observed_.store(true, std::memory_order_relaxed);
        state_.fetch_or(kStopped | kFinished | kFailing, std::memory_order_release);
    }
    tell_watch();
}

}  // namespace penstock::engine
