// SPDX-License-Identifier: Apache-2.0
#include "tier/cache/use_counts.hpp"

#include <algorithm>

namespace penstock::tier {

namespace {

constexpr std::uint64_t kBytesPerSlot = 8;
// Uses a slot until counts are halved.
constexpr std::uint64_t kUsesPerSlot = 16;

}  // namespace

UseCounts::UseCounts(std::uint32_t slots)
    : counts_(std::uint64_t{slots} * kBytesPerSlot), added_max_(slots * kUsesPerSlot) {}

UseCounts::Two UseCounts::places(std::uint64_t hash) const {
    // 32 bits of the hash each, scaled to the number of counts.
    const std::uint64_t counts = counts_.size() * 2;
    const std::uint64_t other = (hash * 0x9e3779b97f4a7c15) >> 32;
    return {static_cast<std::size_t>(((hash & UINT32_MAX) * (counts / 2)) >> 32),
            static_cast<std::size_t>((other * (counts / 2)) >> 32) +
                static_cast<std::size_t>(counts / 2)};
}

std::uint8_t UseCounts::at(std::size_t place) const {
    return static_cast<std::uint8_t>((counts_[place / 2] >> (place % 2 * 4)) & kMax);
}

void UseCounts::raise(std::size_t place) {
    counts_[place / 2] = static_cast<std::uint8_t>(counts_[place / 2] + (1U << (place % 2 * 4)));
}

bool UseCounts::add(std::uint64_t hash) {
    if (counts_.empty()) {
        return false;
    }
    const auto [first, second] = places(hash);
    const std::uint8_t count = std::min(at(first), at(second));
    if (count < kMax) {
        if (at(first) == count) {
            raise(first);
        }
        if (at(second) == count) {
            raise(second);
        }
    }
    return ++added_ >= added_max_;
}

std::uint8_t UseCounts::count(std::uint64_t hash) const {
    if (counts_.empty()) {
        return 0;
    }
    const auto [first, second] = places(hash);
    return std::min(at(first), at(second));
}

void UseCounts::halve() {
    added_ = 0;
    for (std::uint8_t& two : counts_) {
        two = static_cast<std::uint8_t>((two >> 1) & 0x77);
    }
}

}  // namespace penstock::tier
