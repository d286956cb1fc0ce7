// SPDX-License-Identifier: Apache-2.0
// Sorting many things by a whole number that each has: a few passes over them, where std::sort
// makes log2(n).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::base {

/// Stable. `key(item)` is a std::uint64_t; only its digits in use are looked at.
template <typename Item, typename Key>
void radix_sort(std::vector<Item>& items, const Key& key) {
    constexpr std::uint32_t kDigitBits = 11;
    constexpr std::size_t kFew = 512;  // for which counting digits takes longer than comparing
    if (items.size() <= kFew) {
        std::stable_sort(items.begin(), items.end(),
                         [&](const Item& a, const Item& b) { return key(a) < key(b); });
        return;
    }
    std::uint64_t used = 0;
    for (const Item& item : items) {
        used |= key(item);
    }
    std::vector<Item> sorted(items.size());
    for (std::uint32_t shift = 0; shift < 64 && used >> shift != 0; shift += kDigitBits) {
        const auto digit = [&](const Item& item) {
            return (key(item) >> shift) & ((std::uint64_t{1} << kDigitBits) - 1);
        };
        std::array<std::size_t, std::size_t{1} << kDigitBits> next{};
        for (const Item& item : items) {
            ++next[digit(item)];
        }
        std::size_t before = 0;
        for (std::size_t& place : next) {
            before += std::exchange(place, before);
        }
        for (Item& item : items) {
            sorted[next[digit(item)]++] = std::move(item);
        }
        items.swap(sorted);
    }
}

}  // namespace penstock::base
