// SPDX-License-Identifier: Apache-2.0
// The time of passes, and the rate of the files while they never idle.
//
// A unit that is waited for kept its files busy since the one before it arrived, if that was waited
// for too: the next unit is asked for before the wait. So the bytes of such units by the time
// between their ends is the rate of the files, and needs no measurement of its own.
#pragma once

#include <penstock/weights.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

namespace penstock::weights {

class PassTimes {
public:
    using Time = std::chrono::steady_clock::time_point;

    void begin_pass(Time now);
    /// A unit is in memory that needed so many bytes of files. `waited`: it was read ahead, and the
    /// caller waited for its end.
    void arrived(std::uint64_t bytes, bool waited, Time now);
    void released(Time now) { last_release_ = now; }
    /// The next unit may have found its files idle.
    void lose_track() { busy_since_.reset(); }

    void fill(WeightStreamStats& stats) const;

private:
    [[nodiscard]] std::chrono::nanoseconds of_this_pass() const;

    std::chrono::nanoseconds before_{0};  // of the passes that have ended
    Time began_;
    Time last_release_;
    std::uint64_t needed_bytes_ = 0;
    std::optional<Time> busy_since_;
    std::uint64_t busy_bytes_ = 0;
    std::chrono::duration<double> busy_{0};
};

}  // namespace penstock::weights
