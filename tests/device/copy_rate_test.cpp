// SPDX-License-Identifier: Apache-2.0
// When the end of a copy is looked for: seldom, soon after it, also after the rate has changed.
#include "device/mover/copy_rate.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace penstock::device {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

struct Seen {
    int looks = 0;
    base::Nanos late = 0;  // the end of the copy was seen so much later
};

// One copy after another, each of which takes `nanos`; the last is described.
Seen copies(CopyRate& rate, base::Nanos& now, std::uint64_t bytes, base::Nanos nanos, int count) {
    Seen seen;
    for (int i = 0; i < count; ++i) {
        seen = {};
        const base::Nanos end = now + nanos;
        rate.begin(now);
        while (now < end) {
            now += rate.look_again(bytes, now);
            ++seen.looks;
        }
        seen.late = now - end;
        rate.ended(bytes, now);
    }
    return seen;
}

TEST(CopyRate, LooksSeldomAndSeesTheEndSoon) {
    for (const base::Nanos nanos : {25'000, 60'000, 250'000, 520'000, 1'000'000}) {
        CopyRate rate;
        base::Nanos now = 1'000'000'000;
        const Seen seen = copies(rate, now, kMiB, nanos, 20);
        EXPECT_LE(seen.looks, 8) << nanos;
        EXPECT_LE(seen.late, 20'000 + nanos / 4) << nanos;
    }
}

TEST(CopyRate, LearnsThatCopiesBecameFasterOrSlower) {
    CopyRate rate;
    base::Nanos now = 1'000'000'000;
    copies(rate, now, kMiB, 800'000, 10);
    const Seen fast = copies(rate, now, kMiB, 40'000, 20);
    EXPECT_LE(fast.late, 30'000);
    const Seen slow = copies(rate, now, kMiB, 900'000, 3);
    EXPECT_LE(slow.looks, 10);
    copies(rate, now, kMiB, 100'000'000, 1);  // it waited for another stream
    const Seen again = copies(rate, now, kMiB, 40'000, 20);
    EXPECT_LE(again.late, 30'000);
}

TEST(CopyRate, SmallCopiesAreSeenWithinMicroseconds) {
    CopyRate rate;
    base::Nanos now = 1'000'000'000;
    copies(rate, now, kMiB, 800'000, 10);
    const Seen seen = copies(rate, now, 4096, 9'000, 10);
    EXPECT_LE(seen.late, 5'000);
    EXPECT_LE(seen.looks, 3);
}

}  // namespace
}  // namespace penstock::device
