// SPDX-License-Identifier: Apache-2.0
// Sorting many things by a whole number that each has: a few passes over them, where std::sort
// makes log2(n). In place: a hundred million rows need no memory besides their own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace penstock::base {

/// Not stable. `key(item)` is a std::uint64_t; digits that all have in common cost nothing.
template <typename Item, typename Key>
void radix_sort(std::span<Item> items, const Key& key) {
    constexpr std::uint32_t kDigitBits = 8;
    constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
    constexpr std::size_t kFew = 512;  // for which counting digits takes longer than comparing
    if (items.size() <= kFew) {
        std::sort(items.begin(), items.end(),
                  [&](const Item& a, const Item& b) { return key(a) < key(b); });
        return;
    }
    std::uint64_t differing = 0;
    for (const Item& item : items) {
        differing |= key(item) ^ key(items.front());
    }
    if (differing == 0) {
        return;
    }
    // The highest digit in which they differ; what has it in common is sorted by itself.
    const auto bits = static_cast<std::uint32_t>(64 - __builtin_clzll(differing));
    const std::uint32_t shift = bits - std::min(bits, kDigitBits);
    const auto digit = [&](const Item& item) { return (key(item) >> shift) % kDigits; };
    std::array<std::size_t, kDigits> end{};
    for (const Item& item : items) {
        ++end[digit(item)];
    }
    std::array<std::size_t, kDigits> next{};
    std::size_t before = 0;
    for (std::size_t d = 0; d < kDigits; ++d) {
        next[d] = before;
        before += end[d];
        end[d] = before;
    }
    for (std::size_t d = 0; d < kDigits; ++d) {
        while (next[d] != end[d]) {
            const std::size_t to = digit(items[next[d]]);
            if (to == d) {
                ++next[d];
            } else {
                std::swap(items[next[d]], items[next[to]++]);
            }
        }
    }
    std::size_t begin = 0;
    for (const std::size_t stop : end) {
        radix_sort(items.subspan(begin, stop - begin), key);
        begin = stop;
    }
}

}  // namespace penstock::base
