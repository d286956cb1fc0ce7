// SPDX-License-Identifier: Apache-2.0
// Unique random numbers for names and ids. Not std::random_device, which requires glibc 2.36 when
// linked statically.
#pragma once

#include <cstdint>
#include <random>

namespace penstock::base {

/// 64 random bits of the kernel. Any thread.
[[nodiscard]] std::uint64_t random_bits();

/// For tests that replay: while it exists, random_bits() of this thread follows from `seed`.
class SeededRandom {
public:
    explicit SeededRandom(std::uint64_t seed);
    SeededRandom(const SeededRandom&) = delete;
    SeededRandom& operator=(const SeededRandom&) = delete;
    ~SeededRandom();

private:
    friend std::uint64_t random_bits();

    std::mt19937_64 random_;
    SeededRandom* const before_;
};

}  // namespace penstock::base
