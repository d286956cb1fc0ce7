// SPDX-License-Identifier: Apache-2.0
#include "simulation/fake_backend.hpp"

#include "base/assert.hpp"
#include "simulation/fake_file_system.hpp"

#include <algorithm>
#include <chrono>

namespace penstock::simulation {

FakeBackend::FakeBackend(const engine::BackendOptions& options,
                         std::shared_ptr<const base::Clock> clock, bool simulated)
    : clock_(std::move(clock)), simulated_(simulated) {
    pushed_.reserve(options.depth);
    due_.reserve(options.depth);
}

bool FakeBackend::later(const Due& a, const Due& b) {
    return a.when != b.when ? a.when > b.when : a.order > b.order;
}

void FakeBackend::enter(std::uint32_t want, base::Nanos timeout) {
    const base::Nanos now = clock_->now();
    for (engine::Request* request : pushed_) {
        auto& file = static_cast<FakeFile&>(*request->file);
        std::uint64_t bytes = 0;
        for (const iovec& piece : request->pieces) {
            bytes += piece.iov_len;
        }
        due_.push_back({file.disk().schedule(now, bytes), order_++, request});
        std::push_heap(due_.begin(), due_.end(), later);
    }
    pushed_.clear();
    if (simulated_ || want == 0) {
        return;
    }
    const base::Nanos limit = timeout > base::kForever - now ? base::kForever : now + timeout;
    std::unique_lock lock(mutex_);
    while (!wake_ && count_due(clock_->now()) < want && clock_->now() < limit) {
        const base::Nanos until = std::min(limit, next_event());
        if (until == base::kForever) {
            woken_.wait(lock);
        } else {
            woken_.wait_for(
                lock, std::chrono::nanoseconds(std::max<base::Nanos>(until - clock_->now(), 1)));
        }
    }
    wake_ = false;
}

std::uint32_t FakeBackend::count_due(base::Nanos now) const {
    return static_cast<std::uint32_t>(
        std::count_if(due_.begin(), due_.end(), [now](const Due& due) { return due.when <= now; }));
}

std::size_t FakeBackend::reap(std::span<engine::Request*> done) {
    std::size_t count = 0;
    while (count < done.size() && !due_.empty() && due_.front().when <= clock_->now()) {
        engine::Request* request = due_.front().request;
        std::pop_heap(due_.begin(), due_.end(), later);
        due_.pop_back();
        request->result = static_cast<FakeFile&>(*request->file)
                              .access(request->op, request->io, request->offset, request->pieces);
        done[count++] = request;
    }
    return count;
}

void FakeBackend::wake() {
    {
        const std::lock_guard lock(mutex_);
        wake_ = true;
    }
    woken_.notify_one();
}

base::Nanos FakeBackend::next_event() const {
    return due_.empty() ? base::kForever : due_.front().when;
}

}  // namespace penstock::simulation
