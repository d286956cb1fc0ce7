// SPDX-License-Identifier: Apache-2.0
// Alignment arithmetic on powers of two, and additions that report overflow.
#pragma once

#include "base/assert.hpp"

#include <cstdint>
#include <optional>

namespace penstock::base {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;
inline constexpr std::uint64_t kPageBytes = 4096;  // x86-64, the one architecture we support

[[nodiscard]] constexpr bool is_power_of_two(std::uint64_t x) {
    return x != 0 && (x & (x - 1)) == 0;
}
[[nodiscard]] constexpr std::uint64_t align_down(std::uint64_t x, std::uint64_t alignment) {
    return x & ~(alignment - 1);
}
[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t x, std::uint64_t alignment) {
    return (x + alignment - 1) & ~(alignment - 1);
}
[[nodiscard]] constexpr bool is_aligned(std::uint64_t x, std::uint64_t alignment) {
    return (x & (alignment - 1)) == 0;
}
[[nodiscard]] inline bool is_aligned(const void* p, std::uint64_t alignment) {
    return is_aligned(reinterpret_cast<std::uintptr_t>(p), alignment);
}

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
    std::uint64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? std::nullopt : std::optional(sum);
}
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a,
                                                                      std::uint64_t b) {
    std::uint64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? std::nullopt : std::optional(product);
}

}  // namespace penstock::base
