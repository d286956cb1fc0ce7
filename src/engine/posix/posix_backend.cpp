// SPDX-License-Identifier: Apache-2.0
#include "engine/posix/posix_backend.hpp"

#include "engine/posix/worker_pool.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::engine {

PosixBackend::PosixBackend(const BackendOptions& options, const PosixOptions& posix)
    : pool_(std::make_unique<WorkerPool>(std::min(options.depth, posix.threads_max))) {}

PosixBackend::~PosixBackend() = default;

std::string PosixBackend::detail() const {
    return fmt::format("blocking calls on at most {} threads", pool_->threads_max());
}

void PosixBackend::push(Request& request) {
    pushed_.push_back(request);
    ++pushed_count_;
}

void PosixBackend::enter(std::uint32_t want, base::Nanos timeout) {
    if (pushed_count_ > 0) {
        pool_->hand_over(pushed_, pushed_count_);
        pushed_count_ = 0;
    }
    if (want > 0) {
        pool_->sleep_until(reaped_ + want, timeout);
    }
}

std::size_t PosixBackend::reap(std::span<Request*> done) {
    std::size_t count = 0;
    while (count < done.size()) {
        if (finished_.empty()) {
            finished_ = pool_->take_finished();
        }
        Request* request = finished_.pop_front();
        if (request == nullptr) {
            break;
        }
        done[count++] = request;
    }
    reaped_ += static_cast<std::uint32_t>(count);
    return count;
}

void PosixBackend::wake() {
    pool_->wake();
}

std::uint64_t PosixBackend::system_calls() const {
    return pool_->calls();
}

std::uint32_t PosixBackend::threads() const {
    return pool_->threads();
}

void PosixBackend::abandon_after_fork() {
    // The threads are not in the child, and one of them may hold the lock forever: neither joining
    // nor destroying is possible, so the pool's memory stays where it is.
    static_cast<void>(pool_.release());
}

base::Result<std::unique_ptr<Backend>> make_posix_backend(const BackendOptions& options,
                                                          const PosixOptions& posix) {
    if (options.depth == 0 || posix.threads_max == 0) {
        return base::fail(base::error(
            ErrorCode::kInvalidArgument, "posix backend",
            fmt::format("queue depth {} on {} threads was asked for; choose at least 1 of each",
                        options.depth, posix.threads_max)));
    }
    return std::unique_ptr<Backend>(std::make_unique<PosixBackend>(options, posix));
}

}  // namespace penstock::engine
