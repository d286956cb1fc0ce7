// SPDX-License-Identifier: Apache-2.0
// How long a property test searches: PENSTOCK_TEST_SEEDS. `make test` sets 25,000, `.ci/run`
// 100,000, the sanitizers less, `make test-long` more.
#pragma once

#include <cstdint>

namespace penstock::support {

/// How many seeds a property test of a whole engine takes: PENSTOCK_TEST_SEEDS / 4000, at least
/// `min`.
[[nodiscard]] std::uint64_t engine_seeds(std::uint64_t min);

}  // namespace penstock::support
