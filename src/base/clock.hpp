// SPDX-License-Identifier: Apache-2.0
// Time, replaceable by a simulation.
#pragma once

#include <chrono>
#include <cstdint>

namespace penstock::base {

/// Nanoseconds since some fixed moment, monotonic.
using Nanos = std::int64_t;

inline constexpr Nanos kForever = INT64_MAX;
inline constexpr Nanos kNanosPerSecond = 1'000'000'000;

class Clock {
public:
    virtual ~Clock() = default;
    [[nodiscard]] virtual Nanos now() const = 0;
};

class SteadyClock final : public Clock {
public:
    [[nodiscard]] Nanos now() const override {
        return std::chrono::steady_clock::now().time_since_epoch().count();
    }
};

/// The clock of a simulation: it stands still until it is moved.
class VirtualClock final : public Clock {
public:
    [[nodiscard]] Nanos now() const override { return now_; }
    void advance_to(Nanos when) {
        if (when > now_) {
            now_ = when;
        }
    }

private:
    Nanos now_ = 0;
};

}  // namespace penstock::base
