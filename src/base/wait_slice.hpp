// SPDX-License-Identifier: Apache-2.0
// Long waits consist of slices of this length. Between two of them, signal handlers, cancellation
// and progress reports run.
#pragma once

#include <chrono>

namespace penstock::base {

inline constexpr std::chrono::nanoseconds kWaitSlice{50'000'000};

}  // namespace penstock::base
