// SPDX-License-Identifier: Apache-2.0
// Numbers that nobody else draws: for names and ids. Not std::random_device, which, linked
// statically, asks for a glibc of 2.36.
#pragma once

#include <cstdint>
#include <optional>
#include <random>

namespace penstock::base {

/// 64 bits of the kernel's. Any thread.
[[nodiscard]] std::uint64_t random_bits();

/// For tests that replay: while it exists, random_bits() of this thread follows from `seed`.
class SeededRandom {
public:
    explicit SeededRandom(std::uint64_t seed);
    SeededRandom(const SeededRandom&) = delete;
    SeededRandom& operator=(const SeededRandom&) = delete;
    ~SeededRandom();

private:
    std::optional<std::mt19937_64> before_;
};

}  // namespace penstock::base
