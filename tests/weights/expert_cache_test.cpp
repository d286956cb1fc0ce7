// SPDX-License-Identifier: Apache-2.0
// Which experts stay: those that are chosen often, whatever comes between.
#include "weights/experts/expert_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace penstock::weights {
namespace {

// Uses an expert as a stream does. Whether it was there.
bool use(ExpertCache& cache, ExpertCache::Expert expert) {
    cache.count(expert);
    if (cache.find(expert)) {
        return true;
    }
    EXPECT_TRUE(cache.take(expert));
    return false;
}

TEST(ExpertCache, KeepsWhatIsChosenOften) {
    ExpertCache cache(4, {16, 16});
    std::mt19937_64 random(1);
    std::size_t hits = 0;
    for (std::size_t token = 0; token < 500; ++token) {
        for (std::size_t layer = 0; layer < 2; ++layer) {
            // Two of each layer in nine of ten tokens, others in between.
            for (const std::size_t often : {std::size_t{3}, std::size_t{7}}) {
                hits += token >= 100 && use(cache, {layer, often}) ? 1 : 0;
            }
            if (token % 10 == 0) {
                use(cache, {layer, 8 + random() % 8});
            }
        }
    }
    EXPECT_GT(hits, 4 * 400 * 85 / 100);
}

TEST(ExpertCache, ForgetsWhatWasChosenOftenOnce) {
    ExpertCache cache(2, {8});
    for (int i = 0; i < 1000; ++i) {
        use(cache, {0, static_cast<std::size_t>(i % 2)});
    }
    std::size_t hits = 0;
    for (int i = 0; i < 2000; ++i) {
        hits += use(cache, {0, static_cast<std::size_t>(4 + i % 2)}) ? 1 : 0;
    }
    EXPECT_GT(hits, 1000U);
}

// A cache that drops what was used longest ago has no hit here.
TEST(ExpertCache, LayersThatTakeTurnsKeepAShare) {
    constexpr std::size_t kLayers = 10;
    ExpertCache cache(5, std::vector<std::size_t>(kLayers, 4));
    std::size_t hits = 0;
    for (int token = 0; token < 100; ++token) {
        for (std::size_t layer = 0; layer < kLayers; ++layer) {
            hits += use(cache, {layer, 1}) ? 1 : 0;
        }
    }
    EXPECT_GE(hits, 300U);
}

TEST(ExpertCache, WhatIsHeldIsNotTaken) {
    ExpertCache cache(2, {8});
    const std::size_t first = *cache.take({0, 0});
    cache.hold(first);
    cache.hold(first);
    const std::size_t second = *cache.take({0, 1});
    EXPECT_NE(first, second);
    EXPECT_EQ(cache.take({0, 2}), second);
    EXPECT_FALSE(cache.find({0, 1}));
    cache.hold(second);
    EXPECT_FALSE(cache.take({0, 3}));
    cache.release(first);
    EXPECT_TRUE(cache.is_held(first));
    EXPECT_FALSE(cache.take({0, 3}));
    cache.release(first);
    EXPECT_EQ(cache.take({0, 3}), first);
    cache.clear(first);
    EXPECT_FALSE(cache.find({0, 3}));
    EXPECT_EQ(cache.take({0, 4}), first);
}

TEST(ExpertCache, ASizeMayChange) {
    ExpertCache cache(1, {8});
    EXPECT_EQ(cache.take({0, 0}), 0U);
    cache.resize(3);
    EXPECT_EQ(cache.find({0, 0}), 0U);
    EXPECT_EQ(cache.take({0, 1}), 1U);
    EXPECT_EQ(cache.take({0, 2}), 2U);
    cache.resize(2);
    EXPECT_EQ(cache.find({0, 1}), 1U);
    EXPECT_FALSE(cache.find({0, 2}));
}

TEST(ExpertCache, AnyUseKeepsTheTableTrue) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        std::mt19937_64 random(seed);
        ExpertCache cache(1 + random() % 12, {5, 1, 9});
        const std::vector<std::size_t> sizes{5, 1, 9};
        for (int step = 0; step < 500; ++step) {
            const std::size_t layer = random() % 3;
            use(cache, {layer, random() % sizes[layer]});
            if (random() % 5 == 0) {
                cache.clear(random() % cache.slots());
            }
            std::set<std::size_t> slots;
            std::size_t found = 0;
            for (std::size_t i = 0; i < 3; ++i) {
                for (std::size_t number = 0; number < sizes[i]; ++number) {
                    if (const auto slot = cache.find({i, number})) {
                        slots.insert(*slot);
                        ++found;
                    }
                }
            }
            ASSERT_EQ(slots.size(), found);
        }
    }
}

}  // namespace
}  // namespace penstock::weights
