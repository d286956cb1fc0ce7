// SPDX-License-Identifier: Apache-2.0
#include "base/assert.hpp"

#include <cstdio>

namespace penstock::base {

void assertion_failed(const char* expression, const char* file, int line) noexcept {
    std::fprintf(stderr, "penstock: internal error, please report it: %s (%s:%d)\n", expression,
                 file, line);
    __builtin_trap();
}

}  // namespace penstock::base
