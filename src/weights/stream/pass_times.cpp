// SPDX-License-Identifier: Apache-2.0
#include "weights/stream/pass_times.hpp"

#include <algorithm>

namespace penstock {

namespace weights {

std::chrono::nanoseconds PassTimes::of_this_pass() const {
    return std::max(last_release_ - began_, std::chrono::steady_clock::duration());
}

void PassTimes::begin_pass(Time now) {
    before_ += of_this_pass();
    began_ = last_release_ = now;
}

void PassTimes::arrived(std::uint64_t bytes, bool waited, Time now) {
    needed_bytes_ += bytes;
    if (!waited) {
        lose_track();
        return;
    }
    if (busy_since_) {
        busy_bytes_ += bytes;
        busy_ += now - *busy_since_;
    }
    busy_since_ = now;
}

void PassTimes::fill(WeightStreamStats& stats) const {
    stats.running = (before_ + of_this_pass()).count();
    stats.needed_bytes = needed_bytes_;
    stats.bytes_per_second =
        busy_.count() > 0 ? static_cast<double>(busy_bytes_) / busy_.count() : 0;
}

}  // namespace weights

double share_of_bound(double seconds, double waited_seconds, double bytes,
                      double bytes_per_second) {
    if (!(seconds > 0)) {
        return 1;
    }
    const double reading = bytes_per_second > 0 ? bytes / bytes_per_second : 0;
    return std::clamp(std::max(reading, seconds - waited_seconds) / seconds, 0.0, 1.0);
}

}  // namespace penstock
