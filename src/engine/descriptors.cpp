// SPDX-License-Identifier: Apache-2.0
#include "engine/descriptors.hpp"

#include "os/machine/limits.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>

namespace penstock::engine {

namespace {

// Descriptors left to the program: it opens files too, and does not expect to find none.
std::uint64_t spare(std::uint64_t limit) {
    return std::clamp<std::uint64_t>(limit / 8, 4, 128);
}

}  // namespace

Descriptors& Descriptors::of_process() {
    // Never destroyed: engines may end later than statics. No allocation: its first user may be
    // unable to report that there is no memory.
    alignas(Descriptors) static std::array<std::byte, sizeof(Descriptors)> storage;
    static auto* const instance = new (storage.data()) Descriptors;
    return *instance;
}

// In files. No more than a share of it all at once, so that one can open while others work.
std::uint64_t Descriptors::room(std::uint64_t files) const {
    constexpr std::uint64_t kShares = 4;
    const std::uint64_t limit = os::open_files_limit();
    const std::uint64_t all = limit - std::min(limit, others_ + spare(limit));
    const std::uint64_t left = all - std::min(all, open_ + reserved_);
    const std::uint64_t share = std::max<std::uint64_t>(all / kPerFile / kShares, 1);
    return std::min({files, share, left / kPerFile});
}

bool Descriptors::take(RoomWaiter& waiter) {
    const std::lock_guard lock(mutex_);
    const bool none = open_ + reserved_ == 0;
    const std::uint64_t files = room(waiter.files);
    if (!none && (files == 0 || !waiting_.empty())) {
        waiting_.push_back(waiter);
        return false;
    }
    waiter.files = static_cast<std::uint32_t>(std::max<std::uint64_t>(files, 1));
    reserved_ += std::uint64_t{kPerFile} * waiter.files;
    return true;
}

void Descriptors::opened(std::uint32_t files, std::uint32_t open, int highest) {
    Waiters admitted;
    {
        const std::lock_guard lock(mutex_);
        reserved_ -= std::uint64_t{kPerFile} * files;
        open_ += open;
        if (highest >= 0) {
            const std::uint64_t below = static_cast<std::uint64_t>(highest) + 1;
            others_ = below - std::min(below, open_);
        }
        admitted = let_in();
    }
    tell(admitted);
}

void Descriptors::closed(std::uint32_t open) {
    if (open == 0) {
        return;
    }
    Waiters admitted;
    {
        const std::lock_guard lock(mutex_);
        open_ -= open;
        ++closings_;
        admitted = let_in();
    }
    tell(admitted);
}

Descriptors::Refused Descriptors::refused(RoomWaiter& waiter, std::uint64_t before) {
    Waiters admitted;
    Refused what = Refused::kQueued;
    {
        const std::lock_guard lock(mutex_);
        reserved_ -= std::uint64_t{kPerFile} * waiter.files;
        if (closings_ != before) {
            what = Refused::kTryAgain;
        } else if (open_ + reserved_ == 0) {
            what = Refused::kNoneOfOurs;
        } else {
            const std::uint64_t limit = os::open_files_limit();
            others_ = limit - std::min(limit, open_);
            waiting_.push_back(waiter);
        }
        admitted = let_in();
    }
    tell(admitted);
    return what;
}

std::uint64_t Descriptors::closings() {
    const std::lock_guard lock(mutex_);
    return closings_;
}

bool Descriptors::scarce(int number) {
    const std::uint64_t limit = os::open_files_limit();
    return number >= 0 && static_cast<std::uint64_t>(number) + spare(limit) >= limit;
}

Descriptors::Waiters Descriptors::let_in() {
    Waiters admitted;
    while (!waiting_.empty()) {
        const bool none = open_ + reserved_ == 0;
        const std::uint64_t files = room(waiting_.front()->files);
        if (!none && files == 0) {
            break;
        }
        RoomWaiter& next = *waiting_.pop_front();
        next.files = static_cast<std::uint32_t>(std::max<std::uint64_t>(files, 1));
        reserved_ += std::uint64_t{kPerFile} * next.files;
        admitted.push_back(next);
    }
    return admitted;
}

void Descriptors::tell(Waiters waiters) {
    while (RoomWaiter* waiter = waiters.pop_front()) {
        waiter->admitted(*waiter);
    }
}

Descriptors::Waiters Descriptors::drop(const void* what) {
    const std::lock_guard lock(mutex_);
    Waiters dropped;
    Waiters kept;
    while (RoomWaiter* waiter = waiting_.pop_front()) {
        (waiter->waits_for == what ? dropped : kept).push_back(*waiter);
    }
    waiting_ = kept;
    return dropped;
}

// The transfers of the parent do not count here.
void Descriptors::after_fork_in_child() {
    waiting_ = {};
    reserved_ = 0;
    open_ = 0;
    others_ = 0;
    mutex_.unlock();
}

}  // namespace penstock::engine
