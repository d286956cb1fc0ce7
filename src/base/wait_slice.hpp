// SPDX-License-Identifier: Apache-2.0
// Long waits are made of slices of this length. Between two of them a signal's handler, a cancel
// and a report of progress get in.
#pragma once

#include <chrono>

namespace penstock::base {

inline constexpr std::chrono::nanoseconds kWaitSlice{50'000'000};

}  // namespace penstock::base
