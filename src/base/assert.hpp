// SPDX-License-Identifier: Apache-2.0
// Assertions are for our own mistakes, never for input, and stay on in release builds: continuing
// with a broken invariant in an I/O engine may corrupt data.
#pragma once

namespace penstock::base {

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace penstock::base

#define PENSTOCK_ASSERT(expression) \
    (static_cast<bool>(expression)  \
         ? static_cast<void>(0)     \
         : ::penstock::base::assertion_failed(#expression, __FILE__, __LINE__))
