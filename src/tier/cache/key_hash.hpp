// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace penstock::tier {

/// Spreads numbers of keys over 64 bits, each of which depends on all of the number: the finalizer
/// of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014).
[[nodiscard]] constexpr std::uint64_t key_hash(std::uint64_t id) noexcept {
    id += 0x9e3779b97f4a7c15;
    id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9;
    id = (id ^ (id >> 27)) * 0x94d049bb133111eb;
    return id ^ (id >> 31);
}

}  // namespace penstock::tier
