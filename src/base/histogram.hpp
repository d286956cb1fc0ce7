// SPDX-License-Identifier: Apache-2.0
// Latencies in logarithmic buckets: one writer, any reader, no lock. Eight buckets an octave, so a
// percentile is read to within 12 %.
#pragma once

#include "base/clock.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace penstock::base {

class Histogram {
public:
    static constexpr std::size_t kBuckets = 8 * 45;  // up to 2^45 ns, almost ten hours

    void add(Nanos latency) {
        auto& count = counts_[bucket(latency)];
        count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    [[nodiscard]] std::uint64_t count(std::size_t index) const {
        return counts_[index].load(std::memory_order_relaxed);
    }

    /// The bucket of a latency: its exponent and the three bits below the leading one.
    [[nodiscard]] static std::size_t bucket(Nanos latency) {
        const auto ns = static_cast<std::uint64_t>(latency < 8 ? 8 : latency);
        const auto exponent = static_cast<std::size_t>(std::bit_width(ns)) - 1;
        const std::size_t index = (exponent - 3) * 8 + ((ns >> (exponent - 3)) & 7);
        return index < kBuckets ? index : kBuckets - 1;
    }
    /// The largest latency of a bucket, in nanoseconds.
    [[nodiscard]] static Nanos upper_bound(std::size_t index) {
        const std::size_t exponent = index / 8 + 3;
        return static_cast<Nanos>(((index % 8 + 9) << (exponent - 3)) - 1);
    }

private:
    std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
};

}  // namespace penstock::base
