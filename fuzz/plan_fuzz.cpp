// SPDX-License-Identifier: Apache-2.0
// The plan's promises, for any transfer: plan_check.hpp.
#include "plan_check.hpp"

#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    const std::string wrong = penstock::fuzz::PlanCheck({data, bytes}).run();
    if (!wrong.empty()) {
        std::fprintf(stderr, "%s\n", wrong.c_str());
        std::abort();
    }
    return 0;
}
