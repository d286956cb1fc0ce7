// SPDX-License-Identifier: Apache-2.0
// Waiting for a 32-bit word to change, with a time limit (std::atomic::wait has none).
#pragma once

#include "base/clock.hpp"

#include <atomic>
#include <cstdint>

namespace penstock::base {

/// Sleeps while `word` holds `expected`, at most `timeout` nanoseconds. May return early, also for
/// a signal: check the word again.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanos timeout);

void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace penstock::base
