// SPDX-License-Identifier: Apache-2.0
#include "weights/stream/pass_times.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace penstock::weights {
namespace {

using std::chrono::milliseconds;

PassTimes::Time at(int ms) {
    return PassTimes::Time(milliseconds(ms));
}

WeightStreamStats stats_of(const PassTimes& times) {
    WeightStreamStats out;
    times.fill(out);
    return out;
}

TEST(PassTimes, TheTimeBetweenPassesIsOfNone) {
    PassTimes times;
    EXPECT_EQ(stats_of(times).running, 0);
    times.begin_pass(at(1000));
    EXPECT_EQ(stats_of(times).running, 0);
    times.released(at(1200));
    times.released(at(1500));
    times.begin_pass(at(9000));
    times.released(at(9100));
    EXPECT_EQ(stats_of(times).running, 600'000'000);
}

TEST(PassTimes, TheRateIsThatOfUnitsThatWereWaitedForOneAfterTheOther) {
    PassTimes times;
    times.begin_pass(at(0));
    times.arrived(500, true, at(100));  // nobody knows since when its file was busy
    EXPECT_EQ(stats_of(times).bytes_per_second, 0);
    times.arrived(1000, true, at(200));
    times.arrived(3000, true, at(400));
    EXPECT_DOUBLE_EQ(stats_of(times).bytes_per_second, 4000 / 0.3);
    times.arrived(8000, false, at(401));  // it was there: its file may have idled
    times.arrived(1000, true, at(402));
    times.lose_track();
    times.arrived(1000, true, at(403));
    EXPECT_DOUBLE_EQ(stats_of(times).bytes_per_second, 4000 / 0.3);
    EXPECT_EQ(stats_of(times).needed_bytes, 14'500U);
}

TEST(PassTimes, TheBoundIsTheSlowerOfReadingAndComputing) {
    EXPECT_DOUBLE_EQ(share_of_bound(10, 4, 800, 100), 0.8);  // reading alone takes 8 s
    EXPECT_DOUBLE_EQ(share_of_bound(10, 1, 800, 100), 0.9);  // computing alone takes 9 s
    EXPECT_DOUBLE_EQ(share_of_bound(10, 4, 800, 0), 0.6);
    EXPECT_DOUBLE_EQ(share_of_bound(10, 4, 9000, 100), 1);
    EXPECT_DOUBLE_EQ(share_of_bound(0, 0, 0, 0), 1);
}

}  // namespace
}  // namespace penstock::weights
