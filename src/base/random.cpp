// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include "base/assert.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace penstock::base {

namespace {

// A pointer alone: glibc allocates what a thread has of its own when the thread first uses it, and
// ends the process where memory is out. Few bytes are mostly to be had.
thread_local SeededRandom* seeded = nullptr;

// Is for sandboxes that refuse getrandom().
std::uint64_t bits_of_device() {
    std::uint64_t bits = 0;
    const UniqueFd device(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
    PENSTOCK_ASSERT(device && ::read(device.get(), &bits, sizeof bits) == sizeof bits);
    return bits;
}

}  // namespace

SeededRandom::SeededRandom(std::uint64_t seed)
    : random_(seed), before_(std::exchange(seeded, this)) {}

SeededRandom::~SeededRandom() {
    seeded = before_;
}

std::uint64_t random_bits() {
    if (seeded != nullptr) {
        return seeded->random_();
    }
    std::uint64_t bits = 0;
    // The kernel returns so few bytes at once, after waiting for its entropy.
    while (::getrandom(&bits, sizeof bits, 0) < 0) {
        if (errno != EINTR) {
            return bits_of_device();
        }
    }
    return bits;
}

}  // namespace penstock::base
