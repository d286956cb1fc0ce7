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

void Pump::run(PumpSource& source, std::size_t lanes) {
    lanes_.resize(lanes);
    while (true) {
        const std::uint32_t seen = wakes_.load();
        for (std::size_t i = 0; i < lanes; ++i) {
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
            std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.held != nullptr; });
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

// Begins as many units as the lane and the engine have room for.
void Pump::feed(PumpSource& source, std::size_t number) {
    Lane& lane = lanes_[number];
    while (true) {
        if (lane.held == nullptr) {
            if (lane.units >= window_.units || lane.bytes >= window_.bytes) {
                return;
            }
            lane.held = source.next(number);
            if (lane.held == nullptr) {
                return;
            }
            lane.held->lane = number;
            lane.held->request.options.group = this;  // one group for all files: they run in order
        }
        if (!begin(lane) || has_run_) {
            return;  // what has run is passed on before the next runs
        }
    }
}

bool Pump::begin(Lane& lane) {
    const std::uint64_t bytes = lane.held->bytes;
    if (lane.units != 0 && (lane.units >= window_.units || lane.bytes + bytes > window_.bytes)) {
        return false;
    }
    units_.emplace_back();  // its place comes first, so that a unit that has begun is waited for
    std::optional<Transfer> transfer = lane.held->may_run ? engine_.try_run(lane.held->request)
                                                          : engine_.try_submit(lane.held->request);
    if (!transfer) {
        units_.pop_back();
        return false;
    }
    has_run_ = lane.held->may_run && transfer->done();
    group_.add(std::move(*transfer));
    lane.held->request = {};
    lane.bytes += bytes;
    ++lane.units;
    units_.back() = std::move(lane.held);
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
        Lane& lane = lanes_[unit->lane];
        PENSTOCK_ASSERT(lane.units != 0 && lane.bytes >= unit->bytes);
        lane.bytes -= unit->bytes;
        --lane.units;
        source.ended(std::move(unit), std::move(ended->transfer));
        any = true;
    }
    return any;
}

}  // namespace penstock::stream
