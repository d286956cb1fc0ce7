// SPDX-License-Identifier: Apache-2.0
#include "base/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace penstock::base {

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanos timeout) {
    if (timeout <= 0) {
        return;
    }
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(timeout / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(timeout % 1'000'000'000);
    ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected,
              timeout == kForever ? nullptr : &limit, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace penstock::base
