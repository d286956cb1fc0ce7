// SPDX-License-Identifier: Apache-2.0
#include "support/seeds.hpp"

#include <algorithm>
#include <cstdlib>

namespace penstock::support {

std::uint64_t engine_seeds(std::uint64_t min) {
    const char* text = std::getenv("PENSTOCK_TEST_SEEDS");
    const std::uint64_t asked = text == nullptr ? 0 : std::strtoull(text, nullptr, 10) / 4000;
    return std::clamp<std::uint64_t>(asked, min, 2000);
}

}  // namespace penstock::support
