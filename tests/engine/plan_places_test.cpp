// SPDX-License-Identifier: Apache-2.0
// Plans over memory of several places: no request mixes them, what is of a device always has a
// slot, and all else is as for memory of the host alone.
#include "engine/plan_cases.hpp"

namespace penstock::engine {
namespace {

// The places of a case's extents, from its seed.
void scatter(std::vector<Extent>& list, std::uint64_t seed) {
    std::mt19937_64 random(seed * 3 + 1);
    for (Extent& extent : list) {
        const std::uint64_t which = random() % 4;
        extent.memory.kind = which < 2 ? MemoryKind::kHost : MemoryKind::kDevice;
        extent.memory.device = which == 3 ? 1 : 0;
    }
}

void check_places(const Draft& draft, const Extents& extents) {
    const MemoryPlace place = place_of(extents[draft.at.index].memory);
    if (place.kind == MemoryKind::kDevice) {
        ASSERT_TRUE(draft.slot);
        ASSERT_EQ(draft.memory, nullptr);
        ASSERT_FALSE(draft.is_cached_list());
    }
    std::uint64_t left = draft.extents == 0 ? draft.wanted_bytes : 0;
    std::uint64_t skip = draft.at.skip;
    for (std::uint64_t i = draft.at.index; left != 0 || i < draft.at.index + draft.extents; ++i) {
        const Extent extent = extents[i];
        if (extent.memory.bytes != 0) {
            ASSERT_EQ(place_of(extent.memory), place) << "extent " << i;
        }
        left -= std::min(left, extent.memory.bytes - skip);
        skip = 0;
    }
}

void check_all(const std::vector<Draft>& drafts, Op op, const Case& random,
               const Extents& extents) {
    for (const Draft& draft : drafts) {
        check_request(draft, op, random.files[draft.file]->geometry(), extents, random.block_bytes);
        check_places(draft, extents);
        if (testing::Test::HasFatalFailure()) {
            return;
        }
    }
    check_tiling(drafts, extents);
    if (op == Op::kWrite) {
        check_lanes_apart(drafts, random.files, extents);
    }
}

TEST(PlanPlaces, TilesAndNeverMixes) {
    std::uint64_t of_devices = 0;
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
        SCOPED_TRACE(seed);
        Case random(seed);
        scatter(random.list, seed);
        Extents extents(random.list);
        for (const Op op : {Op::kRead, Op::kWrite}) {
            Plan plan(extents, random.files, op, {}, {extents.count(), 0});
            plan.expect_devices();
            if (op == Op::kWrite && seed % 4 == 0) {
                plan.write_through_cache();
            }
            const std::vector<Draft> drafts = all_drafts(plan, random.block_bytes);
            check_all(drafts, op, random, extents);
            if (HasFatalFailure()) {
                return;
            }
            for (const Draft& draft : drafts) {
                of_devices += place_of(extents[draft.at.index].memory) == MemoryPlace{} ? 0 : 1;
            }
        }
    }
    EXPECT_GT(of_devices, 10'000U);
}

TEST(PlanPlaces, ReadsOverGapsNeverMixAnyOrder) {
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
        SCOPED_TRACE(seed);
        Case random(seed);
        scatter(random.list, seed);
        std::mt19937_64 more(seed);
        const Extents extents = near_one_another(random, more, seed % 3 != 0);
        Plan plan(extents, random.files, Op::kRead, {}, {extents.count(), 0});
        plan.expect_devices();
        plan.read_over_gaps(std::uint64_t{1} << more() % 16);
        check_all(all_drafts(plan, random.block_bytes), Op::kRead, random, extents);
        if (HasFatalFailure()) {
            return;
        }
    }
}

// Half of the file is cached, MiB by MiB.
TEST(PlanPlaces, WhatIsCachedComesToADeviceThroughSlots) {
    std::uint64_t cached_to_devices = 0;
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        const auto file =
            std::make_shared<HalfCachedFile>(direct_geometry(4, 512, 512, 4096), random());
        const OpenFiles files{file};
        std::vector<Extent> list;
        std::uint64_t offset = random() % 5000;
        const std::uint64_t bytes_max = 1 + random() % (seed % 2 == 0 ? 5000 : 5'000'000);
        for (std::uint64_t i = 0; i < (seed % 2 == 0 ? 2000 : 20); ++i) {
            list.push_back(
                {offset, {address((1ULL << 40) + i * (8ULL << 20)), random() % bytes_max}, 0});
            offset += random() % 3 == 0 ? list.back().memory.bytes : random() % (bytes_max + 1000);
        }
        scatter(list, seed);
        Extents extents(list);
        extents.sort();
        Counters counters;
        CacheLookup lookup(counters, false);
        Plan plan(extents, files, Op::kRead, {}, {extents.count(), 0});
        plan.expect_devices();
        plan.read_over_gaps(8 << 10);
        plan.consult(lookup, false);
        const std::vector<Draft> drafts = all_drafts(plan, 1 << 20);
        for (const Draft& draft : drafts) {
            check_places(draft, extents);
            ASSERT_LE(draft.bytes, 1U << 20);
            ASSERT_EQ(draft.io == os::IoPath::kBuffered, draft.cached);
            // Few long ones follow what the last reads found.
            ASSERT_TRUE(!draft.cached || seed % 2 != 0 ||
                        file->cached(draft.offset + draft.skip_bytes));
            if (HasFatalFailure()) {
                return;
            }
            cached_to_devices += draft.cached && draft.slot ? 1 : 0;
        }
        check_tiling(drafts, extents);
        if (HasFatalFailure()) {
            return;
        }
    }
    EXPECT_GT(cached_to_devices, 1000U);
}

// The channel's thread hands each piece of memory to the driver, so a request has few of them, in
// the middle of a run as well as at its ends and through the page cache.
TEST(PlanPlaces, ARequestOfADeviceHasFewPiecesOfMemory) {
    constexpr std::uint64_t kPiecesMax = 1024;
    for (const std::uint64_t bytes : {1, 7, 64}) {
        for (const bool apart : {true, false}) {
            std::vector<Extent> list;
            for (std::uint64_t i = 0; i < 3 * kPiecesMax; ++i) {
                std::byte* const memory = address((1ULL << 40) + i * (apart ? 1000 : bytes));
                list.push_back({5000 + i * bytes, {memory, bytes, MemoryKind::kDevice, 0}, 0});
            }
            const Extents extents(list);
            for (const bool direct : {true, false}) {
                os::Geometry geometry = direct_geometry(512, 512, 512, 4096);
                geometry.direct = direct;
                const OpenFiles files{std::make_shared<ShapedFile>(geometry)};
                for (const Op op : {Op::kRead, Op::kWrite}) {
                    Plan plan(extents, files, op, {}, {extents.count(), 0});
                    plan.expect_devices();
                    plan.read_over_gaps(8 << 10);
                    const std::vector<Draft> drafts = all_drafts(plan, 1 << 20);
                    check_tiling(drafts, extents);
                    for (const Draft& draft : drafts) {
                        // A write of a block takes as many as lie in it.
                        const std::uint64_t most = std::max(kPiecesMax * bytes, std::uint64_t{512});
                        ASSERT_TRUE(!apart || draft.wanted_bytes <= most + bytes)
                            << draft.wanted_bytes << " bytes";
                    }
                    ASSERT_TRUE(apart || drafts.size() <= 3) << drafts.size() << " requests";
                }
            }
        }
    }
}

// Two tensors in one file, back to back, one of a device: the block that both have a part of is
// written through the page cache, by each its own bytes.
TEST(PlanPlaces, ABlockOfTwoPlacesIsWrittenThroughTheCache) {
    const OpenFiles files{std::make_shared<ShapedFile>(direct_geometry(512, 512, 512, 4096))};
    const Extents extents(
        std::vector<Extent>{{0, {address(1ULL << 40), 10'000}, 0},
                            {10'000, {address(1ULL << 41), 30'000, MemoryKind::kDevice, 0}, 0}});
    Plan plan(extents, files, Op::kWrite, {}, {2, 0});
    plan.expect_devices();
    std::string seen;
    for (const Draft& draft : all_drafts(plan, 1 << 20)) {
        seen +=
            std::to_string(draft.offset) + (draft.edge ? "e" : "d") + (draft.slot ? "s" : "") + " ";
    }
    EXPECT_EQ(seen, "0d 12288ds 8192e 10000es 36864es ");
}

}  // namespace
}  // namespace penstock::engine
