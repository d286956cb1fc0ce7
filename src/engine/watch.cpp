// SPDX-License-Identifier: Apache-2.0
#include "engine/watch.hpp"

#include "base/futex.hpp"

#include <utility>

namespace penstock::engine {

void Watch::ended() noexcept {
    const std::shared_ptr<Ends> keep = std::move(ends);
    keep->push(*this);
}

void Ends::push(Watch& watch) noexcept {
    watch.next = newest_.load(std::memory_order_relaxed);
    while (!newest_.compare_exchange_weak(watch.next, &watch)) {
    }
    wake();
}

void Ends::wake() noexcept {
    changes_.fetch_add(1);
    if (sleeping_.load()) {
        base::futex_wake_all(changes_);
    }
}

Watch* Ends::take() noexcept {
    if (oldest_ == nullptr) {
        for (Watch* watch = newest_.exchange(nullptr); watch != nullptr;) {
            Watch* const older = std::exchange(watch->next, oldest_);
            oldest_ = watch;
            watch = older;
        }
    }
    Watch* const watch = oldest_;
    if (watch != nullptr) {
        oldest_ = watch->next;
    }
    return watch;
}

void Ends::wait(base::Nanos timeout) noexcept {
    sleeping_.store(true);
    if (newest_.load() == nullptr && changes_.load() == seen_) {
        base::futex_wait(changes_, seen_, timeout);
    }
    sleeping_.store(false);
    seen_ = changes_.load();
}

}  // namespace penstock::engine
