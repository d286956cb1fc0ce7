// SPDX-License-Identifier: Apache-2.0
// Reports the progress of a long call to its caller about every 100 ms; the answer "stop" ends the
// call.
#pragma once

#include "base/raise.hpp"

#include <penstock/types.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace penstock::stream {

class ProgressClock {
public:
    /// `operation` and `path` (or none) name the call in the error.
    ProgressClock(Progress tell, std::string operation, std::string path = {})
        : tell_(std::move(tell)), operation_(std::move(operation)), path_(std::move(path)) {}

    void set_total(std::uint64_t bytes) { total_bytes_ = bytes; }
    /// The end of a call that knew no total before: it is what was done. Throws as tick().
    void end() {
        set_total(done_bytes_.load(std::memory_order_relaxed));
        tick(true);
    }
    /// Any thread.
    void add(std::uint64_t bytes) { done_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
    /// Runs on the caller's thread. Throws kCancelled.
    void tick(bool now = false) {
        if (!tell_) {
            return;
        }
        const auto time = std::chrono::steady_clock::now();
        if (!now && time < next_) {
            return;
        }
        next_ = time + std::chrono::milliseconds(100);
        if (!tell_(done_bytes_.load(std::memory_order_relaxed), total_bytes_)) {
            base::raise(base::error(ErrorCode::kCancelled, operation_,
                                    "its progress callback, or a cancel(), stopped it", path_));
        }
    }

private:
    Progress tell_;
    std::string operation_;
    std::string path_;
    std::uint64_t total_bytes_ = 0;
    std::atomic<std::uint64_t> done_bytes_{0};
    std::chrono::steady_clock::time_point next_ =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
};

}  // namespace penstock::stream
