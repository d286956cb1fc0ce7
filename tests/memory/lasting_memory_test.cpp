// SPDX-License-Identifier: Apache-2.0
#include "memory/lasting_memory.hpp"

#include "memory/block.hpp"
#include "memory/pool.hpp"
#include "support/seccomp.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <utility>

namespace penstock::memory {
namespace {

const LastingMemory& table() {
    return LastingMemory::of_process();
}

Block block_of(std::uint64_t bytes, bool lasting) {
    auto block = Block::make(bytes, {.lasting = lasting});
    EXPECT_TRUE(block) << block.error().describe();
    return std::move(*block);
}

TEST(LastingMemory, HasABlockFromItsMakingToItsEnd) {
    std::byte* data = nullptr;
    const std::uint64_t before = table().removals();
    {
        Block first = block_of(10'000, true);
        data = first.data();
        const Block block = std::move(first);  // moves, and stays the same memory
        for (const std::uint64_t at : {0U, 4096U, 9'999U}) {
            const auto found = table().find(data + at);
            ASSERT_TRUE(found);
            EXPECT_EQ(found->data, data);
            EXPECT_TRUE(found->holds(data + at, 10'000 - at));
            EXPECT_FALSE(found->holds(data + at, 3 * 4096 - at + 1));
        }
        EXPECT_FALSE(table().find(data + 3 * 4096ULL) &&
                     table().find(data + 3 * 4096ULL)->data == data);
        EXPECT_EQ(table().removals(), before);
    }
    EXPECT_FALSE(table().find(data));
    EXPECT_EQ(table().removals(), before + 1);
}

TEST(LastingMemory, HasNoOtherBlock) {
    const Block block = block_of(10'000, false);
    EXPECT_FALSE(table().find(block.data()));
}

TEST(LastingMemory, GivesANumberOnceAndHearsOfEachRemoval) {
    struct Counts final : LastingMemory::Watcher {
        void removed() noexcept override { ++times; }
        int times = 0;
    } counts;
    LastingMemory& its = LastingMemory::of_process();
    its.watch(counts);
    std::set<std::uint64_t> numbers;
    for (int i = 0; i < 100; ++i) {  // mostly at one address
        const Block block = block_of(4096, true);
        EXPECT_TRUE(numbers.insert(its.find(block.data())->number).second);
    }
    its.unwatch(counts);
    { const Block unheard = block_of(4096, true); }
    EXPECT_EQ(counts.times, 100);
}

TEST(LastingMemory, HasWhatAPoolKeeps) {
    Pool pool({.block = {.lasting = true}});
    const std::byte* data = nullptr;
    {
        auto taken = pool.take(5000);
        ASSERT_TRUE(taken);
        data = taken->data();
    }
    EXPECT_TRUE(table().find(data));
    pool.trim();
    EXPECT_FALSE(table().find(data));
}

TEST(LastingMemory, OfAParentIsNotThatOfAChild) {
    std::optional<Block> block = block_of(4096, true);
    const std::string in_child = test::in_child([&]() -> std::string {
        const bool known = table().find(block->data()).has_value();
        block.reset();  // the child's copy: not in its table
        const Block own = block_of(4096, true);
        return known ? "inherited" : table().find(own.data()) ? "its own" : "none";
    });
    EXPECT_EQ(in_child, "its own");
    EXPECT_TRUE(table().find(block->data()));
}

}  // namespace
}  // namespace penstock::memory
