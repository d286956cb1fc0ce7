// SPDX-License-Identifier: Apache-2.0
// Defects that can be switched on, to see that the attacks (tests/attack) find them. A build with
// PENSTOCK_PLANTED=ON has them, and there the environment variable PENSTOCK_PLANTED names the one
// that is on. Everywhere else the answer is a constant, and the compiler drops the defect.
#pragma once

#include <string_view>

namespace penstock::base {

#ifdef PENSTOCK_PLANTED
[[nodiscard]] bool planted(std::string_view defect);
#else
[[nodiscard]] constexpr bool planted(std::string_view /*defect*/) {
    return false;
}
#endif

}  // namespace penstock::base
