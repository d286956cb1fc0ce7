// SPDX-License-Identifier: Apache-2.0
// Random numbers that follow from a few numbers, such as a seed, a batch and a place: any thread
// makes any of them, in any order.
#pragma once

#include <cstdint>

namespace penstock::graph {

__extension__ typedef unsigned __int128 Uint128;  // NOLINT(modernize-use-using)

/// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): a bijection whose bits all depend
/// on all bits.
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t bits) {
    bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
    bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
    return bits ^ (bits >> 31U);
}

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15U;

/// One more number of a key.
[[nodiscard]] constexpr std::uint64_t joined(std::uint64_t key, std::uint64_t next) {
    return mixed(key + kGolden) ^ mixed(next * 0xd1342543de82ef95U + kGolden);
}

class RandomStream {
public:
    explicit RandomStream(std::uint64_t key) : state_(mixed(key)) {}

    [[nodiscard]] std::uint64_t bits() { return mixed(state_ += kGolden); }

    /// From 0 to bound - 1, all equally likely; `bound` is not 0. Lemire's method (ACM TOMACS
    /// 29(1), 2019).
    [[nodiscard]] std::uint64_t below(std::uint64_t bound) {
        Uint128 product = Uint128{bits()} * bound;
        if (static_cast<std::uint64_t>(product) < bound) {
            const std::uint64_t least = (0 - bound) % bound;
            while (static_cast<std::uint64_t>(product) < least) {
                product = Uint128{bits()} * bound;
            }
        }
        return static_cast<std::uint64_t>(product >> 64U);
    }

    /// From 0 to 1, 1 excluded: 53 bits.
    [[nodiscard]] double unit() { return static_cast<double>(bits() >> 11U) * 0x1.0p-53; }

private:
    std::uint64_t state_;
};

/// A bijection of the numbers below 2^bits (1 to 63), by a key: rounds of steps that can each be
/// undone.
class Permutation {
public:
    Permutation(std::uint32_t bits, std::uint64_t key)
        : mask_((std::uint64_t{1} << bits) - 1), shift_(bits / 2 + 1), key_(key) {}

    [[nodiscard]] std::uint64_t operator()(std::uint64_t number) const {
        for (std::uint64_t round = 0; round < 3; ++round) {
            const std::uint64_t step = joined(key_, round);
            number = (number * (step | 1U) + (step >> 7U)) & mask_;
            number ^= number >> shift_;
        }
        return number;
    }

private:
    std::uint64_t mask_;
    std::uint32_t shift_;
    std::uint64_t key_;
};

}  // namespace penstock::graph
