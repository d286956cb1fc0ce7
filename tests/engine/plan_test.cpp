// SPDX-License-Identifier: Apache-2.0
// The plan by its properties, see plan_cases.hpp.
#include "engine/plan_cases.hpp"

#include <cstring>
#include <string>

namespace penstock::engine {
namespace {

TEST(Plan, TilesRandomExtents) {
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
        SCOPED_TRACE(seed);
        const Case random(seed);
        const Extents extents(random.list);
        for (const Op op : {Op::kRead, Op::kWrite}) {
            Plan plan(extents, random.files, op, {}, {extents.count(), 0});
            if (op == Op::kWrite && seed % 4 == 0) {
                plan.write_through_cache();
            }
            const std::vector<Draft> drafts = all_drafts(plan, random.block_bytes);
            for (const Draft& draft : drafts) {
                check_request(draft, op, random.files[draft.file]->geometry(), extents,
                              random.block_bytes);
            }
            check_tiling(drafts, extents);
            if (op == Op::kWrite) {
                check_lanes_apart(drafts, random.files, extents);
            }
            if (HasFatalFailure()) {
                return;
            }
        }
    }
}

TEST(Plan, ReadsOverGapsTileInAnyOrderAndOverOneAnother) {
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
        SCOPED_TRACE(seed);
        Case random(seed);
        std::mt19937_64 more(seed);
        const Extents extents = near_one_another(random, more, seed % 3 != 0);
        Plan plan(extents, random.files, Op::kRead, {}, {extents.count(), 0});
        plan.read_over_gaps(std::uint64_t{1} << more() % 16);
        const std::vector<Draft> drafts = all_drafts(plan, random.block_bytes);
        for (const Draft& draft : drafts) {
            check_request(draft, Op::kRead, random.files[draft.file]->geometry(), extents,
                          random.block_bytes);
        }
        check_tiling(drafts, extents);
        if (HasFatalFailure()) {
            return;
        }
    }
}

// Rows near one another, half of them cached: each byte once, from where it is, in few requests.
TEST(Plan, ListsTakeWhatIsCachedFromThereInFewRequests) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        auto file = std::make_shared<HalfCachedFile>(direct_geometry(4, 512, 512, 4096), random());
        const OpenFiles files{file};
        std::vector<Extent> list;
        std::uint64_t offset = random() % 5000;
        const std::uint64_t bytes_max = 1 + random() % 5000;
        for (std::uint64_t i = 0; i < 2000; ++i) {
            list.push_back({offset, {address((1ULL << 40) + i * 8192), random() % bytes_max}, 0});
            offset += random() % 3 == 0 ? list.back().memory.bytes : random() % 6000;
        }
        Extents extents(list);
        extents.sort();
        Counters counters;
        CacheLookup lookup(counters, false);
        Plan plan(extents, files, Op::kRead, {}, {extents.count(), 0});
        plan.read_over_gaps(8 << 10);
        plan.consult(lookup, false);
        const std::vector<Draft> drafts = all_drafts(plan, 1 << 20);
        std::vector<std::uint32_t> seen(extents.count());
        for (const Draft& draft : drafts) {
            const Extent first = extents[draft.at.index];
            ASSERT_EQ(draft.cached, file->cached(first.offset + draft.at.skip));
            std::uint64_t wanted = 0;
            for (std::uint64_t i = draft.at.index; i < draft.at.index + draft.extents; ++i) {
                const Extent extent = extents[i];
                wanted += extent.memory.bytes - (i == draft.at.index ? draft.at.skip : 0);
                ++seen[i];
                const std::uint64_t begin =
                    extent.offset + (i == draft.at.index ? draft.at.skip : 0);
                const std::uint64_t end = extent.offset + extent.memory.bytes;
                ASSERT_TRUE(begin == end || (file->cached(begin) == draft.cached &&
                                             file->cached(end - 1) == draft.cached));
            }
            ASSERT_FALSE(draft.cached && draft.slot);
            ASSERT_TRUE(!draft.is_cached_list() || draft.wanted_bytes == wanted);
        }
        ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](auto times) { return times <= 1; }));
        ASSERT_LE(drafts.size(), 200U);
        ASSERT_LE(counters.cache_questions.get(), 20U);
    }
}

// Copies of a request over gaps are compared with memory.
TEST(Plan, WhatLiesBetweenIsDropped) {
    const OpenFiles files{std::make_shared<ShapedFile>(direct_geometry(4, 512, 512, 4096))};
    std::vector<std::byte> file(64 << 10);
    for (std::size_t i = 0; i < file.size(); ++i) {
        file[i] = static_cast<std::byte>(i * 131 >> 3);
    }
    constexpr std::byte kUntouched{0xEE};
    std::vector<std::byte> memory(10'000, kUntouched);
    // Two of one block, one over another, one twice, an empty one far away.
    Extents extents({{700, {memory.data() + 10, 100}, 0},
                     {130, {memory.data() + 200, 60}, 0},
                     {130, {memory.data() + 300, 60}, 0},
                     {150, {memory.data() + 400, 500}, 0},
                     {1 << 30, {nullptr, 0}, 0},
                     {8000, {memory.data() + 1000, 3000}, 0}});
    std::vector<std::byte> expected = memory;
    for (std::uint64_t i = 0; i < extents.count(); ++i) {
        if (const Extent extent = extents[i]; extent.memory.bytes != 0) {
            std::memcpy(expected.data() + (extent.memory.data - memory.data()),
                        file.data() + extent.offset, extent.memory.bytes);
        }
    }
    extents.sort();
    Plan plan(extents, files, Op::kRead, {}, {extents.count(), 0});
    plan.read_over_gaps(8 << 10);
    const std::vector<Draft> drafts = all_drafts(plan, 1 << 20);
    ASSERT_EQ(drafts.size(), 1U);
    const Draft& draft = drafts.front();
    EXPECT_EQ(draft.offset, 0U);
    EXPECT_EQ(draft.bytes, 11'264U);
    const std::byte* const slot = file.data() + draft.offset + draft.skip_bytes;
    const auto copy = [&](std::byte* to, std::uint64_t begin, std::uint64_t bytes) {
        std::memcpy(to, slot + begin, bytes);
    };
    EXPECT_EQ(for_each_piece_over_gaps(extents, draft, draft.wanted_bytes, copy), 3'720U);
    EXPECT_TRUE(memory == expected);
    // Reads each stretch by itself, without what lies between, in the order of the file.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> stretches;
    for (std::uint32_t done = 0; done < draft.skip_bytes + draft.wanted_bytes;) {
        const Stretch next = next_wanted(extents, draft, done);
        stretches.emplace_back(next.begin, next.end);
        done = next.end;
    }
    EXPECT_EQ(stretches, (std::vector<std::pair<std::uint32_t, std::uint32_t>>{
                             {130, 650}, {700, 800}, {8000, 11'000}}));
}

TEST(Plan, ALongRunIsNotDraggedThroughSlotsForWhatLiesNearIt) {
    const OpenFiles files{std::make_shared<ShapedFile>(direct_geometry(4, 512, 512, 4096))};
    Extents extents({{0, {address(1ULL << 40), 1 << 18}, 0},
                     {(1 << 18) + 4096, {address(1ULL << 41), 4096}, 0}});
    Plan plan(extents, files, Op::kRead, {}, {extents.count(), 0});
    plan.read_over_gaps(8 << 10);
    for (const Draft& draft : all_drafts(plan, 1 << 20)) {
        EXPECT_FALSE(draft.slot);
    }
}

TEST(Plan, SlicesAndGroupsTileTogether) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        SCOPED_TRACE(seed);
        const Case random(seed);
        const Extents extents(random.list);
        if (extents.count() == 0) {
            continue;
        }
        // Cut in the middle of an extent, and give each file a group of its own.
        const std::uint64_t middle = extents.count() / 2;
        const Position cut{middle, extents[middle].memory.bytes / 2};
        std::vector<std::uint32_t> groups;
        for (std::uint32_t f = 0; f < random.files.size(); ++f) {
            groups.push_back(f);
        }
        std::vector<Draft> drafts;
        for (std::uint32_t group = 0; group < groups.size(); ++group) {
            for (const auto& [begin, end] :
                 {std::pair(Position{}, cut), std::pair(cut, Position{extents.count(), 0})}) {
                Plan plan(extents, random.files, Op::kRead, begin, end, groups, group);
                for (const Draft& draft : all_drafts(plan, random.block_bytes)) {
                    drafts.push_back(draft);
                }
            }
        }
        check_tiling(drafts, extents);
        if (HasFatalFailure()) {
            return;
        }
    }
}

std::vector<Draft> plan_one(const os::Geometry& geometry, Op op, std::uint64_t offset,
                            std::uint64_t bytes, std::uint64_t memory) {
    const OpenFiles files{std::make_shared<ShapedFile>(geometry)};
    const Extents extents(std::vector<Extent>{{offset, {address(memory), bytes}, 0}});
    Plan plan(extents, files, op, {}, {1, 0});
    return all_drafts(plan, 1 << 20);
}

TEST(Plan, AnOrdinaryTensorGoesStraightWhereMemoryMay) {
    // 64-byte aligned, as allocators give; NVMe under a current kernel asks for 4.
    const auto drafts =
        plan_one(direct_geometry(4, 512, 512, 4096), Op::kRead, 0, 8 << 20, (1ULL << 40) + 64);
    ASSERT_EQ(drafts.size(), 8U);
    for (const Draft& draft : drafts) {
        EXPECT_FALSE(draft.slot);
    }
}

TEST(Plan, AnUnalignedStartDoesNotDragTheRestThroughSlots) {
    // Offset 520 to an address that is aligned where the offset is: only the first block is copied.
    const auto drafts =
        plan_one(direct_geometry(4, 512, 512, 4096), Op::kRead, 520, 8 << 20, (1ULL << 40) + 8);
    std::uint64_t slot_bytes = 0;
    for (const Draft& draft : drafts) {
        slot_bytes += draft.slot ? draft.wanted_bytes : 0;
    }
    EXPECT_LE(slot_bytes, 1024U);
}

TEST(Plan, WritesCutTheirEndsAtThePage) {
    const auto drafts = plan_one(direct_geometry(4, 512, 512, 4096), Op::kWrite, 1000, 100'000,
                                 (1ULL << 40) + 1000);
    ASSERT_GE(drafts.size(), 3U);
    EXPECT_EQ(drafts.front().offset, 4096U);
    EXPECT_EQ(drafts[drafts.size() - 2].offset, 1000U);
    EXPECT_EQ(drafts[drafts.size() - 2].bytes, 3096U);
    EXPECT_TRUE(drafts[drafts.size() - 2].edge);
    EXPECT_EQ(drafts.back().offset, 98304U);
    EXPECT_EQ(drafts.back().bytes, 101'000U - 98'304U);
    EXPECT_TRUE(drafts.back().edge);
}

TEST(Plan, ManySmallTensorsInOneRunAreGathered) {
    const OpenFiles files{std::make_shared<ShapedFile>(direct_geometry(512, 512, 512, 4096))};
    std::vector<Extent> list;
    for (std::uint64_t i = 0; i < 160; ++i) {
        list.push_back({i << 16, {address((1ULL << 40) + (i << 17)), 1 << 16}, 0});
    }
    const Extents extents(list);
    Plan plan(extents, files, Op::kWrite, {}, {extents.count(), 0});
    const auto drafts = all_drafts(plan, 1 << 20);
    ASSERT_EQ(drafts.size(), 10U);
    for (const Draft& draft : drafts) {
        EXPECT_EQ(draft.bytes, 1U << 20);
        EXPECT_FALSE(draft.slot);
    }
}

TEST(Plan, OffsetsAndLengthsPastFourGiBAndTwoTiB) {
    const std::uint64_t offset = (std::uint64_t{5} << 40) + 4096;
    const std::uint64_t bytes = (std::uint64_t{5} << 30) + 12288;
    const auto drafts =
        plan_one(direct_geometry(4, 4096, 4096, 4096), Op::kWrite, offset, bytes, 1ULL << 44);
    std::uint64_t total = 0;
    for (const Draft& draft : drafts) {
        EXPECT_EQ(draft.offset, offset + total);
        total += draft.bytes;
    }
    EXPECT_EQ(total, bytes);
}

// A short run of which a part would be an end is one buffered request, if the file lets it.
TEST(Plan, ShortOddRunsAreOneBufferedRequest) {
    const auto file = [](bool asks_cache) {
        return OpenFiles{
            std::make_shared<ShapedFile>(direct_geometry(512, 512, 512, 4096), asks_cache)};
    };
    const Extents extents({{4090, {address(1 << 20), 20'000}, 0},              // odd, and short
                           {1 << 20, {address(2 << 20), 8192}, 0},             // even
                           {(2 << 20) + 1, {address(3 << 20), 1 << 20}, 0}});  // long
    const auto lanes = [&](const OpenFiles& files, bool all) {
        Plan plan(extents, files, Op::kWrite, {}, {extents.count(), 0});
        if (all) {
            plan.write_through_cache();
        }
        std::string seen;
        for (const Draft& draft : all_drafts(plan, 4 << 20)) {
            seen += draft.edge ? 'b' : 'd';
        }
        return seen;
    };
    EXPECT_EQ(lanes(file(true), false), "ddbbb");
    EXPECT_EQ(lanes(file(true), true), "bbb");
    EXPECT_EQ(lanes(file(false), false), "dddbbbb");
    EXPECT_EQ(lanes(file(false), true), "dddbbbb");
}

}  // namespace
}  // namespace penstock::engine
