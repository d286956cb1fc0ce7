// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include "base/assert.hpp"

#include <sys/random.h>

#include <cerrno>
#include <utility>

namespace penstock::base {

namespace {

thread_local std::optional<std::mt19937_64> seeded;

}  // namespace

SeededRandom::SeededRandom(std::uint64_t seed)
    : before_(std::exchange(seeded, std::mt19937_64(seed))) {}

SeededRandom::~SeededRandom() {
    seeded = before_;
}

std::uint64_t random_bits() {
    if (seeded) {
        return (*seeded)();
    }
    std::uint64_t bits = 0;
    // The kernel returns so few bytes at once, after waiting for its entropy.
    while (::getrandom(&bits, sizeof bits, 0) < 0) {
        PENSTOCK_ASSERT(errno == EINTR);
    }
    return bits;
}

}  // namespace penstock::base
