// SPDX-License-Identifier: Apache-2.0
#include "memory/pool.hpp"

#include "base/align.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace penstock::memory {
namespace {

using ::testing::HasSubstr;

PooledBlock take(Pool& pool, std::uint64_t bytes) {
    auto block = pool.take(bytes);
    EXPECT_TRUE(block) << block.error().describe();
    return std::move(*block);
}

TEST(Pool, SizesAreRoundedUpToClasses) {
    Pool pool;
    struct Case {
        std::uint64_t asked;
        std::uint64_t held;
    };
    for (const Case c : {Case{1, 4096}, Case{4096, 4096}, Case{4097, 8192}, Case{65536, 65536},
                         Case{(1 << 20) + 1, 9 << 17}}) {
        const PooledBlock block = take(pool, c.asked);
        EXPECT_EQ(block.size(), c.asked);
        EXPECT_EQ(block.block().size(), c.held);
        EXPECT_TRUE(base::is_aligned(block.data(), 4096));
    }
    EXPECT_EQ(pool.kept_bytes(), 4096U + 8192 + 65536 + (9 << 17));  // 4096 was taken twice in turn
}

// A block is found again by any size of its class, and is never too small.
TEST(Pool, ASizeIsOfOneClass) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 2000; ++i) {
        Pool pool;
        const std::uint64_t asked = 1 + random() % (std::uint64_t{1} << (random() % 27));
        const std::byte* data = nullptr;
        std::uint64_t held = 0;
        {
            const PooledBlock block = take(pool, asked);
            data = block.data();
            held = block.block().size();
            EXPECT_FALSE(block.used());
        }
        ASSERT_GE(held, asked);
        ASSERT_LE(held, asked + std::max<std::uint64_t>(asked / 8, 4096));
        const PooledBlock same = take(pool, held);
        ASSERT_EQ(same.data(), data) << asked;
        ASSERT_TRUE(same.used());
        const PooledBlock more = take(pool, held + 1);
        ASSERT_GT(more.block().size(), held);
    }
}

TEST(Pool, NewestGoesOutFirst) {
    Pool pool;
    std::optional<PooledBlock> first = take(pool, 5000);
    std::optional<PooledBlock> second = take(pool, 8000);
    const std::byte* first_data = first->data();
    const std::byte* second_data = second->data();
    first.reset();
    second.reset();
    const PooledBlock again = take(pool, 6000);
    EXPECT_EQ(again.data(), second_data);
    const PooledBlock before = take(pool, 6000);
    EXPECT_EQ(before.data(), first_data);
    EXPECT_EQ(pool.kept_bytes(), 0U);
}

TEST(Pool, WhatIsKeptIsBoundedAndTheOldestGivesWay) {
    Pool pool({.kept_bytes_max = 64 << 10, .block = {}});
    { const PooledBlock old = take(pool, 16 << 10); }
    { const PooledBlock young = take(pool, 32 << 10); }
    EXPECT_EQ(pool.kept_bytes(), 48U << 10);
    { const PooledBlock large = take(pool, 64 << 10); }
    EXPECT_EQ(pool.kept_bytes(), 64U << 10);  // both gave way
    { const PooledBlock too_large = take(pool, 128 << 10); }
    EXPECT_EQ(pool.kept_bytes(), 64U << 10);  // never kept, and nothing gave way for it
    { const PooledBlock small = take(pool, 4 << 10); }
    EXPECT_EQ(pool.kept_bytes(), 4U << 10);
}

TEST(Pool, TheOldestGivesWayNotTheYoungest) {
    Pool pool({.kept_bytes_max = 64 << 10, .block = {}});
    std::optional<PooledBlock> second = take(pool, 32 << 10);
    std::optional<PooledBlock> third = take(pool, 32 << 10);
    { const PooledBlock first = take(pool, 16 << 10); }
    second.reset();
    third.reset();
    EXPECT_EQ(pool.kept_bytes(), 64U << 10);  // the 16 KiB are gone; a 32 KiB would have left 48
}

TEST(Pool, KeepsNothingWhenToldSo) {
    Pool pool({.kept_bytes_max = 0, .block = {}});
    { const PooledBlock block = take(pool, 4096); }
    EXPECT_EQ(pool.kept_bytes(), 0U);
}

TEST(Pool, TrimGivesBack) {
    Pool pool;
    { const PooledBlock block = take(pool, 1 << 20); }
    EXPECT_EQ(pool.kept_bytes(), 1U << 20);
    pool.trim();
    EXPECT_EQ(pool.kept_bytes(), 0U);
    { const PooledBlock block = take(pool, 4096); }
    EXPECT_EQ(pool.kept_bytes(), 4096U);  // it goes on keeping
}

TEST(Pool, BlockMayOutliveThePool) {
    std::optional<Pool> pool(std::in_place);
    std::optional<PooledBlock> block = take(*pool, 4096);
    pool.reset();
    std::memset(block->data(), 1, block->size());
    block.reset();
}

TEST(Pool, ZeroBytes) {
    Pool pool;
    { const PooledBlock block = take(pool, 0); }
    EXPECT_EQ(pool.kept_bytes(), 0U);
}

TEST(Pool, TooMuch) {
    Pool pool;
    for (const std::uint64_t bytes : {~std::uint64_t{0}, (std::uint64_t{1} << 62) + 1}) {
        const auto block = pool.take(bytes);
        ASSERT_FALSE(block);
        EXPECT_EQ(block.error().code, ErrorCode::kOutOfMemory);
        EXPECT_THAT(block.error().describe(), HasSubstr(std::to_string(bytes)));
    }
}

TEST(Pool, AssignmentGivesTheOldOneBack) {
    Pool pool;
    PooledBlock block = take(pool, 4096);
    block = take(pool, 8192);
    EXPECT_EQ(pool.kept_bytes(), 4096U);
    EXPECT_EQ(block.size(), 8192U);
    PooledBlock moved = std::move(block);
    EXPECT_EQ(block.size(), 0U);  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_EQ(moved.size(), 8192U);
    moved = PooledBlock();
    EXPECT_EQ(pool.kept_bytes(), 4096U + 8192);
}

// No two owners ever hold the same block.
TEST(Pool, ManyThreads) {
    Pool pool({.kept_bytes_max = 256 << 10, .block = {}});
    std::atomic<bool> mixed{false};
    std::vector<std::thread> threads;
    for (unsigned id = 1; id <= 4; ++id) {
        threads.emplace_back([&, id] {
            std::minstd_rand random(id);
            std::vector<PooledBlock> held;
            for (int i = 0; i < 5000; ++i) {
                if (held.size() < 8 && random() % 2 == 0) {
                    held.push_back(take(pool, 1 + random() % 30000));
                    std::memset(held.back().data(), static_cast<int>(id), held.back().size());
                } else if (!held.empty()) {
                    const PooledBlock& last = held.back();
                    if (last.data()[0] != std::byte(id) ||
                        last.data()[last.size() - 1] != std::byte(id)) {
                        mixed = true;
                    }
                    held.pop_back();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_FALSE(mixed);
    EXPECT_LE(pool.kept_bytes(), 256U << 10);
}

}  // namespace
}  // namespace penstock::memory
