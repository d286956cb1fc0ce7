// SPDX-License-Identifier: Apache-2.0
// What a channel counts as it goes. One writer; anybody reads, at any time, without stopping it.
#pragma once

#include "base/histogram.hpp"

#include <atomic>
#include <cstdint>

namespace penstock::engine {

class Counter {
public:
    void add(std::uint64_t n) {
        value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

struct Counters {
    Counter bytes_read;  ///< as the device saw them
    Counter bytes_written;
    Counter requests;
    Counter retries;               ///< EAGAIN, EINTR and what came short
    Counter slot_requests;         ///< requests that passed through a slot
    Counter edge_requests;         ///< buffered ends of written runs
    Counter copied_bytes;          ///< between slots and callers, by cores
    Counter device_copied_bytes;   ///< between slots and devices, by copy engines
    Counter device_path_requests;  ///< straight between files and devices: see device_path/
    Counter device_path_bytes;
    Counter device_path_refusals;  ///< of them; they went on through a slot
    Counter bytes_cached;          ///< of reads, from the page cache
    Counter cache_questions;       ///< what is in the page cache: cachestat, and probes of one byte
    Counter turns;
    base::Histogram latency;  ///< of requests, from push to completion
};

}  // namespace penstock::engine
