// SPDX-License-Identifier: Apache-2.0
#include "base/radix_sort.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace penstock::base {
namespace {

using Item = std::pair<std::uint64_t, std::uint64_t>;  // key, number

TEST(RadixSort, IsWhatStdSortGivesAndKeepsEveryItem) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        const std::uint64_t low = random() % 60;
        const std::uint64_t keys = std::uint64_t{1} << random() % 64;
        const std::uint64_t same = random() << 32;
        std::vector<Item> items(random() % 5000);
        for (std::uint64_t i = 0; i < items.size(); ++i) {
            items[i] = {(random() % keys << low) | (seed % 2 == 0 ? same : 0), i};
        }
        std::vector<Item> expected = items;
        radix_sort(std::span(items), [](const Item& item) { return item.first; });
        EXPECT_TRUE(std::is_sorted(items.begin(), items.end(),
                                   [](const Item& a, const Item& b) { return a.first < b.first; }));
        std::sort(items.begin(), items.end());
        std::sort(expected.begin(), expected.end());
        EXPECT_EQ(items, expected);
    }
}

}  // namespace
}  // namespace penstock::base
