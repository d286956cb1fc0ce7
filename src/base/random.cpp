// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include "base/assert.hpp"

#include <sys/random.h>

#include <cerrno>

namespace penstock::base {

std::uint64_t random_bits() {
    std::uint64_t bits = 0;
    // So few bytes come whole once the kernel has gathered its entropy, and it waits for that.
    while (::getrandom(&bits, sizeof bits, 0) < 0) {
        PENSTOCK_ASSERT(errno == EINTR);
    }
    return bits;
}

}  // namespace penstock::base
