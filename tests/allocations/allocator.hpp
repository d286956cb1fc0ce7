// SPDX-License-Identifier: Apache-2.0
// The allocator of this program: it counts every allocation of the process, on whatever thread, and
// fails those that a test wants to fail. It is operator new, and the C library's functions where no
// sanitizer has taken those already.
#pragma once

#include <cstdint>

namespace penstock::allocator {

/// Allocations so far.
[[nodiscard]] std::uint64_t count();
/// Allocations of operator new that operator delete did not free yet.
[[nodiscard]] std::int64_t live();

enum class Fails : std::uint8_t { kOnce, kFromThenOn };

/// From now on the `n`-th allocation (1: the next) fails, or all from the `n`-th on.
void fail(std::uint64_t n, Fails how);
/// Nothing fails any more. How many allocations there were since fail().
std::uint64_t stop_failing();

}  // namespace penstock::allocator
