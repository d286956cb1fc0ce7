// SPDX-License-Identifier: Apache-2.0
// Whole numbers that remember an overflow, so that a formula reads as one and is checked once, at
// its end.
#pragma once

#include <cstdint>

namespace penstock::plan {

class Exact {
public:
    constexpr Exact(std::uint64_t value = 0)  // NOLINT(google-explicit-constructor)
        : value_(value) {}

    [[nodiscard]] constexpr bool fits() const { return fits_; }
    [[nodiscard]] constexpr std::uint64_t value() const { return value_; }

    constexpr Exact& operator+=(const Exact& other) {
        const bool over = __builtin_add_overflow(value_, other.value_, &value_);
        fits_ = fits_ && other.fits_ && !over;
        return *this;
    }
    constexpr Exact& operator*=(const Exact& other) {
        const bool over = __builtin_mul_overflow(value_, other.value_, &value_);
        fits_ = fits_ && other.fits_ && !over;
        return *this;
    }
    friend constexpr Exact operator+(Exact a, const Exact& b) { return a += b; }
    friend constexpr Exact operator*(Exact a, const Exact& b) { return a *= b; }

private:
    std::uint64_t value_ = 0;
    bool fits_ = true;
};

[[nodiscard]] constexpr std::uint64_t divided_up(std::uint64_t a, std::uint64_t b) {
    return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace penstock::plan
