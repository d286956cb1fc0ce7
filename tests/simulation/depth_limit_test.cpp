// SPDX-License-Identifier: Apache-2.0
// A depth limit that transfers share. The disk takes 100 us a request and has lanes to spare, so
// the time that N requests took says how many were at the disk at once.
#include "simulation/simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <vector>

namespace penstock::simulation {
namespace {

constexpr std::uint64_t kBlock = 4096;
constexpr base::Nanos kRequest = 100'000;

struct Disk {
    explicit Disk(std::uint32_t channels, std::uint64_t seed = 1) {
        SimulationOptions options;
        options.seed = seed;
        options.shape.memory_align = 4;
        options.shape.read_align = 512;
        options.shape.write_align = 512;
        options.model = {
            .request_ns = kRequest, .lanes = 64, .bytes_per_second = 1e12, .jitter_ns = 0};
        options.core.domain.channels = channels;
        options.core.domain.channel.depth = 32;
        options.core.domain.channel.gap_bytes = 0;  // a request a block
        simulation = std::make_unique<Simulation>(options);
        file = *simulation->file_system().open("/file",
                                               {.access = Access::kReadWrite, .create = true});
        EXPECT_TRUE(file->truncate(1024 * kBlock));
        memory.resize(1025 * kBlock);
    }

    // `blocks` requests: places in memory that do not adjoin.
    engine::Transfer* read(std::uint64_t blocks, std::shared_ptr<engine::DepthLimit> limit,
                           Priority priority = Priority::kNormal) {
        std::vector<Extent> extents;
        auto* const aligned = reinterpret_cast<std::byte*>(
            (reinterpret_cast<std::uintptr_t>(memory.data()) + kBlock - 1) / kBlock * kBlock);
        for (std::uint64_t i = 0; i < blocks; ++i) {
            extents.push_back({2 * i * kBlock, {aligned + i * kBlock, kBlock}, 0});
        }
        engine::TransferSpec spec;
        spec.files = {file};
        spec.extents = engine::Extents(std::move(extents));
        spec.options.depth_limit = DepthLimit(std::move(limit));
        spec.options.priority = priority;
        auto started = simulation->core().start(std::move(spec));
        EXPECT_TRUE(started);
        transfers.push_back(*started);
        return *started;
    }

    // The time until all have finished; 0 when that never happens.
    base::Nanos finish() {
        const base::Nanos begin = simulation->now();
        const bool ended = simulation->run_until([this] {
            return std::all_of(transfers.begin(), transfers.end(),
                               [](const engine::Transfer* t) { return t->finished(); });
        });
        for (engine::Transfer* transfer : transfers) {
            transfer->mark_observed();
            transfer->abandon();
            transfer->release();
        }
        transfers.clear();
        return ended ? simulation->now() - begin : 0;
    }

    std::unique_ptr<Simulation> simulation;
    std::shared_ptr<os::File> file;
    std::vector<std::byte> memory;
    std::vector<engine::Transfer*> transfers;
};

TEST(DepthLimit, OneTransferHasSoManyAtTheDeviceAndNoFewer) {
    for (const std::uint32_t depth : {1U, 2U, 5U, 16U}) {
        Disk disk(1);
        disk.read(80, std::make_shared<engine::DepthLimit>(depth));
        const base::Nanos rounds = (80 + depth - 1) / depth;
        const base::Nanos took = disk.finish();
        EXPECT_GE(took, rounds * kRequest) << depth;
        EXPECT_LE(took, rounds * kRequest * 11 / 10) << depth;
    }
}

TEST(DepthLimit, ManyTransfersShareOne) {
    Disk disk(1);
    const auto limit = std::make_shared<engine::DepthLimit>(4);
    for (int i = 0; i < 100; ++i) {
        disk.read(1 + i % 3, limit);
    }
    const base::Nanos took = disk.finish();  // 199 requests
    EXPECT_GE(took, 50 * kRequest);
    EXPECT_LE(took, 55 * kRequest);
}

TEST(DepthLimit, OthersGoPastThoseThatWait) {
    Disk disk(1);
    const auto limit = std::make_shared<engine::DepthLimit>(1);
    for (int i = 0; i < 10; ++i) {
        disk.read(10, limit);
    }
    engine::Transfer* free = disk.read(31, nullptr);
    const base::Nanos begin = disk.simulation->now();
    ASSERT_TRUE(disk.simulation->run(*free));
    EXPECT_LE(disk.simulation->now() - begin, 2 * kRequest);
    EXPECT_GE(disk.finish(), 97 * kRequest);
}

TEST(DepthLimit, ChannelsHaveEqualShares) {
    Disk disk(2);
    disk.read(80, std::make_shared<engine::DepthLimit>(8));
    const base::Nanos took = disk.finish();
    EXPECT_GE(took, 10 * kRequest);
    EXPECT_LE(took, 12 * kRequest);
}

TEST(DepthLimit, TransfersAreDoneInTheirOrder) {
    Disk disk(1);
    const auto limit = std::make_shared<engine::DepthLimit>(3);
    for (int i = 0; i < 8; ++i) {
        disk.read(6, limit);
    }
    std::size_t finished = 0;
    while (finished < disk.transfers.size()) {
        ASSERT_TRUE(disk.simulation->step());
        while (finished < disk.transfers.size() && disk.transfers[finished]->finished()) {
            ++finished;
        }
        for (std::size_t later = finished + 1; later < disk.transfers.size(); ++later) {
            ASSERT_FALSE(disk.transfers[later]->finished());
        }
    }
    EXPECT_GT(disk.finish() + 1, 0);
}

TEST(DepthLimit, RequestsAreNoLongerThanTheTransfersBlock) {
    Disk disk(1);
    engine::TransferSpec spec;
    spec.files = {disk.file};
    spec.extents = engine::Extents({{0, {disk.memory.data(), 64 * kBlock}, 0}});
    spec.options.block_bytes = 5000;  // becomes 8192
    const std::uint64_t before = disk.simulation->disk().operations();
    auto started = disk.simulation->core().start(std::move(spec));
    ASSERT_TRUE(started);
    disk.transfers.push_back(*started);
    EXPECT_GT(disk.finish(), 0);
    EXPECT_GE(disk.simulation->disk().operations() - before, 32U);
    EXPECT_LE(disk.simulation->disk().operations() - before, 34U);
}

// A seat is its channel's while something uses it: a limit that outlives engines neither keeps the
// seats of channels that are gone, nor takes a new channel at an old address for the old one.
TEST(DepthLimit, OutlivesEngines) {
    const auto limit = std::make_shared<engine::DepthLimit>(8);
    for (int i = 0; i < 40; ++i) {
        const std::uint32_t channels = i % 2 == 0 ? 1 : 4;
        Disk disk(channels);
        disk.read(80, limit);
        const base::Nanos took = disk.finish();  // ten requests one after the other
        EXPECT_GE(took, 10 * kRequest) << i;
        EXPECT_LE(took, 13 * kRequest) << i;
    }
    EXPECT_LE(limit->seats(), 4U);
}

// Limits, errors, cancels and changes of class at once: everything ends.
TEST(DepthLimit, NothingHangs) {
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        Disk disk(1 + static_cast<std::uint32_t>(random() % 2), seed);
        disk.simulation->disk().set_faults([seed](const DiskAccess& access) -> Fault {
            const std::uint64_t dice = (access.index * 2654435761U + seed * 97) >> 7;
            return dice % 23 == 0  ? Fault{.system_errno = EIO}
                   : dice % 5 == 0 ? Fault{.bytes_max = 512}
                                   : Fault{};
        });
        const std::vector<std::shared_ptr<engine::DepthLimit>> limits = {
            nullptr, std::make_shared<engine::DepthLimit>(1),
            std::make_shared<engine::DepthLimit>(2 + static_cast<std::uint32_t>(random() % 5))};
        for (int i = 0; i < 20; ++i) {
            disk.read(random() % 12, limits[random() % 3], static_cast<Priority>(random() % 3));
        }
        for (std::uint64_t steps = random() % 200; steps-- > 0;) {
            disk.simulation->step();
            engine::Transfer* one = disk.transfers[random() % disk.transfers.size()];
            if (random() % 16 == 0) {
                disk.simulation->core().cancel(*one);
            } else if (random() % 16 == 0 && !one->finished()) {
                disk.simulation->core().set_priority(*one, static_cast<Priority>(random() % 3));
            }
        }
        disk.finish();
        ASSERT_EQ(disk.simulation->core().running(), 0U) << "a transfer hangs";
    }
}

}  // namespace
}  // namespace penstock::simulation
