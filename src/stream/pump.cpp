// SPDX-License-Identifier: Apache-2.0
#include "stream/pump.hpp"

#include "base/assert.hpp"
#include "base/futex.hpp"
#include "base/wait_slice.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace penstock::stream {

void Pump::run(PumpSource& source, std::size_t queues) {
    queues_.resize(queues);
    while (true) {
        const std::uint32_t seen = wakes_.load();
        for (std::size_t i = 0; i < queues; ++i) {
            feed(source, i);
        }
        const bool moved = take_ended(source, std::chrono::nanoseconds(0));
        progress_.tick();
        if (moved) {
            continue;
        }
        const OwnWork work = source.own_work();
        if (work == OwnWork::kDid) {
            continue;
        }
        const bool held =
            std::ranges::any_of(queues_, [](const Queue& queue) { return queue.held != nullptr; });
        if (!group_.empty()) {
            take_ended(source, base::kWaitSlice);
        } else if (held) {
            engine_.wait_for_room(base::kWaitSlice);  // other callers use all transfers
        } else if (work == OwnWork::kNone) {
            base::futex_wait(wakes_, seen, base::kWaitSlice.count());
        } else {
            break;
        }
    }
    progress_.tick(true);
}

void Pump::wake() noexcept {
    wakes_.fetch_add(1);
    base::futex_wake_all(wakes_);
    group_.wake();
}

// Begins as many units as the queue and the engine have room for.
void Pump::feed(PumpSource& source, std::size_t number) {
    Queue& queue = queues_[number];
    while (true) {
        if (queue.held == nullptr) {
            if (queue.units >= window_.units || queue.bytes >= window_.bytes) {
                return;
            }
            queue.held = source.next(number);
            if (queue.held == nullptr) {
                return;
            }
            queue.held->queue = number;
            queue.held->request.options.group = this;  // one group for all files: they run in order
        }
        if (!begin(queue) || has_run_) {
            return;  // what has run is passed on before the next runs
        }
    }
}

bool Pump::begin(Queue& queue) {
    const std::uint64_t bytes = queue.held->bytes;
    if (queue.units != 0 && (queue.units >= window_.units || queue.bytes + bytes > window_.bytes)) {
        return false;
    }
    units_.emplace_back();  // its place comes first, so that a unit that has begun is waited for
    std::optional<Transfer> transfer = queue.held->may_run
                                           ? engine_.try_run(queue.held->request)
                                           : engine_.try_submit(queue.held->request);
    if (!transfer) {
        units_.pop_back();
        return false;
    }
    has_run_ = queue.held->may_run && transfer->done();
    group_.add(std::move(*transfer));
    queue.held->request = {};
    queue.bytes += bytes;
    ++queue.units;
    units_.back() = std::move(queue.held);
    return true;
}

// Passes finished units to the source, waiting up to `timeout`; false when none has ended.
bool Pump::take_ended(PumpSource& source, std::chrono::nanoseconds timeout) {
    bool any = false;
    while (auto ended = group_.wait_any(any ? std::chrono::nanoseconds(0) : timeout)) {
        PENSTOCK_ASSERT(ended->number - first_ < units_.size());
        PumpUnitPtr unit = std::move(units_[ended->number - first_]);
        PENSTOCK_ASSERT(unit != nullptr);  // a transfer ends once
        while (!units_.empty() && units_.front() == nullptr) {
            units_.pop_front();
            ++first_;
        }
        Queue& queue = queues_[unit->queue];
        PENSTOCK_ASSERT(queue.units != 0 && queue.bytes >= unit->bytes);
        queue.bytes -= unit->bytes;
        --queue.units;
        source.ended(std::move(unit), std::move(ended->transfer));
        any = true;
    }
    return any;
}

}  // namespace penstock::stream
