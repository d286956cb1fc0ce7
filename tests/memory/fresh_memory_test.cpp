// SPDX-License-Identifier: Apache-2.0
// Memory of a load: it lies as the file does, and what nobody uses any more is the system's again.
#include "memory/fresh_memory.hpp"

#include "base/align.hpp"
#include "support/seccomp.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace penstock::memory {
namespace {

constexpr std::uint64_t kPage = base::kPageBytes;
constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kHeapMax = 64 * base::kKiB;  // up to here, gaps included, it is of the heap

// Bytes of a range that are in memory, in whole pages.
std::uint64_t resident(std::span<std::byte> bytes) {
    const auto begin =
        base::align_down(reinterpret_cast<std::uintptr_t>(bytes.data()), std::uint64_t{kPage});
    const auto end = base::align_up(reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size(),
                                    std::uint64_t{kPage});
    std::vector<unsigned char> pages((end - begin) / kPage);
    EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()), 0);
    return kPage * static_cast<std::uint64_t>(
                       std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1U; }));
}

std::span<std::byte> bytes_of(const FreshMemory& memory, std::size_t i, const Stretch& stretch) {
    return {memory.address(i), stretch.bytes};
}

TEST(FreshMemoryTest, EachStretchLiesInItsPageAsInTheFileAndMeetsNoOther) {
    std::mt19937 random(3);
    for (int round = 0; round < 50; ++round) {
        std::vector<Stretch> stretches;
        std::uint64_t at = random() % 10'000;
        for (std::uint64_t i = 0; i < 1 + random() % 200; ++i) {
            const std::uint64_t kind = random() % 10;
            const std::uint64_t bytes = kind == 0 ? 0 : random() % (kind == 1 ? 3'000'000 : 9'000);
            stretches.push_back({at, bytes});
            at += bytes + (random() % 3 == 0 ? random() % 20'000 : random() % 64);
        }
        std::shuffle(stretches.begin(), stretches.end(), random);
        const std::uint64_t wanted =
            std::accumulate(stretches.begin(), stretches.end(), std::uint64_t{0},
                            [](std::uint64_t sum, const Stretch& s) { return sum + s.bytes; });
        const FreshMemory memory = FreshMemory::make(stretches).value();
        std::vector<std::pair<std::byte*, std::size_t>> order;
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            const auto* address = memory.address(i);
            if (stretches[i].bytes == 0) {
                EXPECT_EQ(address, nullptr);
                continue;
            }
            const std::uint64_t unit = wanted > kHeapMax ? kPage : kLine;
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % unit, stretches[i].offset % unit);
            order.emplace_back(memory.address(i), i);
        }
        std::sort(order.begin(), order.end());
        for (std::size_t k = 1; k < order.size(); ++k) {
            const Stretch& before = stretches[order[k - 1].second];
            const Stretch& next = stretches[order[k].second];
            const auto apart = static_cast<std::uint64_t>(order[k].first - order[k - 1].first);
            const std::uint64_t in_file = next.offset - before.offset;
            ASSERT_GE(apart, before.bytes);
            if (in_file - before.bytes < kPage) {  // what lies between is read with them
                EXPECT_EQ(apart, in_file);
            }
        }
    }
}

TEST(FreshMemoryTest, PagesGoWithTheLastUserOfTheirPart) {
    constexpr std::uint64_t kMiB = base::kMiB;
    const std::vector<Stretch> stretches{
        {64, 16 * kMiB}, {16 * kMiB + 128, 16 * kMiB}, {32 * kMiB + 192, 16 * kMiB}};
    std::vector<FreshMemory::SharePlace> places;
    std::vector<std::span<std::byte>> bytes;
    {
        const FreshMemory memory = FreshMemory::make(stretches).value();
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            places.push_back(memory.place(i));
            bytes.push_back(bytes_of(memory, i, stretches[i]));
            std::memset(bytes.back().data(), static_cast<int>(i + 1), bytes.back().size());
        }
    }
    EXPECT_GE(resident(bytes[1]), 16 * kMiB);
    places[1] = {};
    EXPECT_LE(resident(bytes[1]), 2 * kPage);  // those at its ends are the neighbours' too
    for (const std::size_t i : {0U, 2U}) {
        const auto value = static_cast<std::byte>(i + 1);
        EXPECT_TRUE(
            std::all_of(bytes[i].begin(), bytes[i].end(), [&](std::byte b) { return b == value; }));
    }
    places[0] = {};
    const std::span<std::byte> both(bytes[0].data(), bytes[1].data() + bytes[1].size());
    EXPECT_LE(resident(both), kPage);  // of a huge page, one that stays keeps 2 MiB
    EXPECT_EQ(bytes[2][0], std::byte{3});
}

// Up to 32 MiB: the next load takes the mapping, with its pages.
TEST(FreshMemoryTest, ALittleIsKeptForTheNextLoad) {
    const std::vector<Stretch> stretches{{64, 3 * base::kMiB}, {5 * base::kMiB, 2 * base::kMiB}};
    std::byte* address = nullptr;
    {
        std::optional<FreshMemory> memory = FreshMemory::make(stretches).value();
        address = memory->address(0);
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            std::memset(memory->address(i), 1, stretches[i].bytes);
        }
        std::vector<FreshMemory::SharePlace> places{memory->place(0), memory->place(1)};
        memory.reset();
        places.clear();  // one part after the other
    }
    const FreshMemory again = FreshMemory::make(stretches).value();
    EXPECT_EQ(again.address(0), address);
    EXPECT_TRUE(again.faulted_in());
    for (std::size_t i = 0; i < stretches.size(); ++i) {
        EXPECT_GE(resident(bytes_of(again, i, stretches[i])), stretches[i].bytes);
    }
    const FreshMemory other = FreshMemory::make(stretches).value();
    EXPECT_NE(other.address(0), address);
}

// A shard of a large load is small, and nothing of it stays.
TEST(FreshMemoryTest, NothingOfALargeLoadIsKept) {
    const std::vector<Stretch> stretches{{64, 3 * base::kMiB}, {5 * base::kMiB, 2 * base::kMiB}};
    std::optional<FreshMemory> memory = FreshMemory::make(stretches, false).value();
    EXPECT_FALSE(memory->faulted_in());
    const std::span<std::byte> gone = bytes_of(*memory, 0, stretches[0]);
    std::memset(gone.data(), 1, gone.size());
    const FreshMemory::SharePlace kept = memory->place(1);
    memory.reset();
    EXPECT_LE(resident(gone), 2 * kPage);
}

TEST(FreshMemoryTest, FreePartsOfALittleGoAtTheNextLoad) {
    const std::vector<Stretch> stretches{{0, 8 * base::kMiB}, {10 * base::kMiB, 8 * base::kMiB}};
    std::optional<FreshMemory> memory = FreshMemory::make(stretches).value();
    const std::span<std::byte> gone = bytes_of(*memory, 0, stretches[0]);
    const std::span<std::byte> used = bytes_of(*memory, 1, stretches[1]);
    std::memset(gone.data(), 1, gone.size());
    std::memset(used.data(), 2, used.size());
    const FreshMemory::SharePlace kept = memory->place(1);
    memory.reset();
    EXPECT_GE(resident(gone), gone.size());
    EXPECT_TRUE(FreshMemory::make(std::vector<Stretch>{{0, base::kMiB}}));
    EXPECT_LE(resident(gone), 2 * kPage);
    EXPECT_TRUE(
        std::all_of(used.begin(), used.end(), [](std::byte b) { return b == std::byte{2}; }));
}

// A huge page reaches past the last stretch.
TEST(FreshMemoryTest, WhatIsBehindTheLastPartGoesWithIt) {
    const std::vector<Stretch> stretches{{0, 2 * base::kMiB}, {4 * base::kMiB, 15 * base::kMiB}};
    std::optional<FreshMemory> memory = FreshMemory::make(stretches).value();
    const FreshMemory::SharePlace kept = memory->place(0);
    std::byte* const end = memory->address(1) + stretches[1].bytes;
    std::memset(memory->address(1), 1, stretches[1].bytes);
    memory.reset();
    EXPECT_TRUE(FreshMemory::make(std::vector<Stretch>{{0, base::kMiB}}));
    std::vector<unsigned char> page(1);
    for (std::byte* at = end + kPage;
         ::mincore(at, kPage, page.data()) == 0 && at < end + base::kMiB; at += kPage) {
        ASSERT_EQ(page[0] & 1U, 0U) << at - end;
    }
}

// One tensor of each of many loads stays.
TEST(FreshMemoryTest, FreePartsAreBounded) {
    const std::vector<Stretch> stretches{{0, 2 * base::kMiB}, {4 * base::kMiB, 20 * base::kMiB}};
    std::vector<FreshMemory> memories;
    std::vector<FreshMemory::SharePlace> kept;
    std::vector<std::span<std::byte>> gone;
    for (int i = 0; i < 12; ++i) {
        memories.push_back(FreshMemory::make(stretches).value());
        kept.push_back(memories.back().place(0));
        gone.push_back(bytes_of(memories.back(), 1, stretches[1]));
        std::memset(gone.back().data(), 1, gone.back().size());
    }
    memories.clear();
    std::uint64_t bytes = 0;
    for (const std::span<std::byte> each : gone) {
        bytes += resident(each);
    }
    EXPECT_LE(bytes, 65 * base::kMiB);
}

// The kept memory is given up for another load that needs it.
TEST(FreshMemoryTest, WhatIsKeptIsNotMissing) {
    for (const std::uint64_t bytes : {30 * base::kMiB, 40 * base::kMiB}) {
        EXPECT_EQ(test::in_child([&]() -> std::string {
                      const std::vector<Stretch> kept{{0, 16 * base::kMiB}};
                      std::vector<FreshMemory> memories;
                      for (int i = 0; i < 4; ++i) {
                          memories.push_back(FreshMemory::make(kept).value());
                      }
                      memories.clear();
                      std::ifstream statm("/proc/self/statm");
                      rlim_t pages = 0;
                      statm >> pages;
                      const rlim_t most = pages * kPage + 20 * base::kMiB;
                      const rlimit limit{most, most};
                      ::setrlimit(RLIMIT_AS, &limit);
                      return FreshMemory::make(std::vector<Stretch>{{0, bytes}}) ? "made" : "none";
                  }),
                  "made");
    }
}

TEST(FreshMemoryTest, SmallNeighboursShareAPart) {
    std::vector<Stretch> stretches;
    for (std::uint64_t i = 0; i < 10'000; ++i) {
        stretches.push_back({i * 1024, 1000});
    }
    const FreshMemory memory = FreshMemory::make(stretches).value();
    std::vector<std::shared_ptr<FreshMemory::Share>> parts;
    for (std::size_t i = 0; i < stretches.size(); ++i) {
        if (parts.empty() || parts.back() != memory.place(i).part) {
            parts.push_back(memory.place(i).part);
        }
    }
    EXPECT_GE(parts.size(), 5U);
    EXPECT_LE(parts.size(), 11U);  // of a MiB each
}

TEST(FreshMemoryTest, NothingIsNoMappingAndTooMuchIsAnError) {
    EXPECT_EQ(FreshMemory::make({})->size(), 0U);
    const std::vector<Stretch> none{{5, 0}, {9, 0}};
    EXPECT_EQ(FreshMemory::make(none)->address(1), nullptr);
    const std::vector<Stretch> huge{{0, std::uint64_t{1} << 62}};
    const auto refused = FreshMemory::make(huge);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace penstock::memory
