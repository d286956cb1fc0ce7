// SPDX-License-Identifier: Apache-2.0
// Flows: who of one class draws next. The disk brings 1 GB/s, so a byte is a nanosecond, and is
// hollow: only time and counts matter.
#include "simulation/simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace penstock::simulation {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;
constexpr std::uint64_t kBlock = kMiB;
constexpr std::uint64_t kAtDevice = 16 * kMiB;

class Flows : public ::testing::Test {
protected:
    void SetUp() override { open_disk({}); }
    void open_disk(const engine::ChannelOptions& channel) {
        SimulationOptions options;
        options.shape.hollow = true;
        options.shape.memory_align = 1;
        options.model = {.request_ns = 1000, .lanes = 64, .bytes_per_second = 1e9, .jitter_ns = 0};
        options.core.domain.channel = channel;
        simulation_ = std::make_unique<Simulation>(options);
        // Bytes of each flow: files have ranges of their own in one long name.
        simulation_->disk().set_faults([this](const DiskAccess& access) -> Fault {
            const std::uint64_t flow = access.offset / kRange;
            moved_.resize(std::max<std::size_t>(moved_.size(), flow + 1));
            moved_[flow] += access.bytes;
            order_.push_back(access.offset);
            return {};
        });
        auto made = simulation_->file_system().open("/file",
                                                    {.access = Access::kReadWrite, .create = true});
        ASSERT_TRUE(made);
        ASSERT_TRUE((*made)->truncate(kRange * 4096));
    }
    void TearDown() override {
        for (engine::Transfer* transfer : transfers_) {
            simulation_->core().cancel(*transfer);
            EXPECT_TRUE(simulation_->run(*transfer));
            transfer->mark_observed();
            transfer->abandon();
            transfer->release();
        }
    }

    [[nodiscard]] std::shared_ptr<os::File> file() {
        return *simulation_->file_system().open("/file", {.access = Access::kRead});
    }

    // Extents of a read of range number `flow`; nothing is touched, so any address will do.
    static std::vector<Extent> extents(std::uint64_t flow, std::uint64_t bytes,
                                       std::uint64_t offset = 0) {
        return {{flow * kRange + offset, {reinterpret_cast<std::byte*>(1 << 20), bytes}, 0}};
    }
    engine::Transfer* start(engine::TransferSpec spec) {
        auto started = simulation_->core().start(std::move(spec));
        EXPECT_TRUE(started);
        transfers_.push_back(*started);
        return *started;
    }
    engine::Transfer* read(const std::shared_ptr<os::File>& from, std::uint64_t flow,
                           std::uint64_t bytes, Priority priority = Priority::kNormal,
                           const void* group = nullptr, std::uint64_t offset = 0) {
        engine::TransferSpec spec;
        spec.files = {from};
        spec.extents = engine::Extents(extents(flow, bytes, offset));
        spec.options.priority = priority;
        spec.options.group = group;
        return start(std::move(spec));
    }
    engine::Transfer* read_by_path(std::uint64_t flow, std::uint64_t bytes) {
        engine::TransferSpec spec;
        spec.paths = {"/file"};
        spec.extents = engine::Extents(extents(flow, bytes));
        return start(std::move(spec));
    }
    // The device is as full as it gets.
    void fill() {
        const base::Nanos until = simulation_->now() + 50'000'000;
        ASSERT_TRUE(simulation_->run_until([&] { return simulation_->now() >= until; }));
    }
    base::Nanos time_of(const engine::Transfer* transfer) {
        const base::Nanos begin = simulation_->now();
        EXPECT_TRUE(simulation_->run(*transfer));
        return simulation_->now() - begin;
    }
    [[nodiscard]] std::uint64_t moved(std::uint64_t flow) const {
        return flow < moved_.size() ? moved_[flow] : 0;
    }

    static constexpr std::uint64_t kRange = 128 * kGiB;
    std::unique_ptr<Simulation> simulation_;
    std::vector<engine::Transfer*> transfers_;
    std::vector<std::uint64_t> moved_;
    std::vector<std::uint64_t> order_;
};

TEST_F(Flows, ASmallReadWaitsForWhatIsAtTheDeviceAlone) {
    read(file(), 0, 100'000'000'000);
    fill();
    EXPECT_LE(time_of(read(file(), 1, 4096)), static_cast<base::Nanos>(kAtDevice + 2 * kMiB));
}

TEST_F(Flows, ASmallReadOfTheSameFileToo) {
    const auto same = file();
    read(same, 0, 100'000'000'000);
    fill();
    EXPECT_LE(time_of(read(same, 1, 4096)), static_cast<base::Nanos>(kAtDevice + 2 * kMiB));
}

// Whatever number of long transfers there is: it does not wait for a turn.
TEST_F(Flows, ASmallReadPassesManyFlows) {
    for (std::uint64_t flow = 0; flow < 200; ++flow) {
        flow % 2 == 0 ? read(file(), flow, kGiB) : read_by_path(flow, kGiB);
    }
    fill();
    EXPECT_LE(time_of(read(file(), 300, kBlock)), static_cast<base::Nanos>(kAtDevice + 3 * kMiB));
}

// A stream of small reads with never a gap has a flow's share and no more.
TEST_F(Flows, SmallReadsDoNotKeepALongOneWaiting) {
    const auto small = file();
    read(file(), 0, kGiB);
    std::vector<engine::Transfer*> running;
    std::uint64_t asked = 0;
    while (moved(0) < 256 * kMiB) {
        while (running.size() < 256) {
            running.push_back(read(small, 1, 65536, Priority::kNormal, nullptr, 65536 * asked++));
        }
        ASSERT_TRUE(simulation_->step());
        running.erase(std::remove_if(running.begin(), running.end(),
                                     [](const engine::Transfer* t) { return t->finished(); }),
                      running.end());
    }
    EXPECT_NEAR(static_cast<double>(moved(1)) / static_cast<double>(moved(0)), 1.0, 0.15);
}

TEST_F(Flows, TwoShareADeviceEqually) {
    for (const bool by_path : {false, true}) {
        moved_.clear();
        engine::Transfer* first = by_path ? read_by_path(2, kGiB) : read(file(), 2, kGiB);
        engine::Transfer* second = by_path ? read_by_path(3, kGiB) : read(file(), 3, kGiB);
        ASSERT_TRUE(
            simulation_->run_until([&] { return first->finished() || second->finished(); }));
        EXPECT_GE(static_cast<double>(std::min(moved(2), moved(3))),
                  0.95 * static_cast<double>(std::max(moved(2), moved(3))));
    }
}

// By bytes, whatever the size of their requests.
TEST_F(Flows, ShortRequestsGetNoLess) {
    engine::TransferSpec spec;
    spec.files = {file()};
    spec.extents = engine::Extents(extents(0, kGiB));
    spec.options.block_bytes = 64 << 10;
    start(std::move(spec));
    engine::Transfer* other = read(file(), 1, kGiB);
    ASSERT_TRUE(simulation_->run(*other));
    EXPECT_GE(static_cast<double>(moved(0)), 0.95 * static_cast<double>(moved(1)));
}

// Requests of one File or one group are done in their order.
TEST_F(Flows, OneFlowKeepsItsOrder) {
    const auto one = file();
    const int group = 0;
    for (const void* key : {static_cast<const void*>(nullptr), static_cast<const void*>(&group)}) {
        order_.clear();
        std::vector<engine::Transfer*> mine;
        read(file(), 7, 256 * kMiB);  // another flow, in turns with it
        for (std::uint64_t i = 0; i < 16; ++i) {
            mine.push_back(read(key == nullptr ? one : file(), 0, 3 * kMiB, Priority::kNormal, key,
                                i * 3 * kMiB));
        }
        ASSERT_TRUE(simulation_->run(*mine.back()));
        order_.erase(std::remove_if(order_.begin(), order_.end(),
                                    [](std::uint64_t offset) { return offset >= kRange; }),
                     order_.end());
        EXPECT_EQ(order_.size(), 48U);
        EXPECT_TRUE(std::is_sorted(order_.begin(), order_.end()));
    }
}

// Cancels and changes of class look at all parts again; nobody loses its turn by that.
TEST_F(Flows, TurnsOutliveALookAtAllParts) {
    read(file(), 0, kGiB);
    engine::Transfer* other = read(file(), 1, kGiB);
    const auto cancelled = file();
    while (!other->finished() && moved(0) + moved(1) < kGiB) {
        simulation_->core().cancel(*read(cancelled, 2, 4 * kMiB));
        const base::Nanos now = simulation_->now();
        ASSERT_TRUE(simulation_->run_until([&] { return simulation_->now() > now; }));
    }
    EXPECT_NEAR(static_cast<double>(moved(0)) / static_cast<double>(moved(1)), 1.0, 0.1);
}

// Requests of a few bytes count as well: a sixteenth is a sixteenth.
TEST_F(Flows, ALowerClassHasItsShareOfTinyRequests) {
    engine::ChannelOptions channel;
    channel.block_bytes = 16 << 10;
    open_disk(channel);
    engine::TransferSpec spec;
    spec.files = {*simulation_->file_system().open(
        "/file", {.access = Access::kRead, .cache = CachePolicy::kCached})};
    std::vector<Extent> rows;
    for (std::uint64_t i = 0; i < 80'000; ++i) {
        rows.push_back({i * 4096, {reinterpret_cast<std::byte*>((1 << 20) + i * 64), 8}, 0});
    }
    spec.extents = engine::Extents(std::move(rows));
    spec.options.priority = Priority::kUrgent;
    engine::Transfer* urgent = start(std::move(spec));
    engine::Transfer* normal = read(file(), 1, kGiB);
    ASSERT_TRUE(simulation_->run(*urgent));
    EXPECT_FALSE(normal->finished());
    EXPECT_GE(moved(1) + 2 * channel.block_bytes, 80'000 * 8 / 15);
    EXPECT_GT(moved(1), 0U);
}

// Whatever comes, is cancelled, changes its class and fails: everything ends.
TEST_F(Flows, NothingHangs) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        engine::ChannelOptions channel;
        channel.block_bytes = 64 << 10;
        channel.background_block_bytes = 64 << 10;
        channel.in_flight_bytes = 256 << 10;
        channel.depth = 1 + static_cast<std::uint32_t>(random() % 8);
        transfers_.clear();
        open_disk(channel);
        std::vector<std::shared_ptr<os::File>> files;
        for (int i = 0; i < 5; ++i) {
            files.push_back(file());
        }
        const std::shared_ptr<engine::DepthLimit> limit = std::make_shared<engine::DepthLimit>(2);
        for (int step = 0; step < 400; ++step) {
            if (random() % 4 == 0) {
                engine::TransferSpec spec;
                if (random() % 4 == 0) {
                    spec.paths = {"/file"};
                } else {
                    spec.files = {files[random() % files.size()]};
                }
                spec.op = random() % 3 == 0 && !spec.paths.empty() ? engine::Op::kWrite
                                                                   : engine::Op::kRead;
                spec.extents =
                    engine::Extents(extents(random() % 4, 1 + random() % (1 << 18), random() % 9));
                spec.options.priority = static_cast<Priority>(random() % 3);
                spec.options.group = random() % 3 == 0 ? &files[random() % 2] : nullptr;
                spec.options.depth_limit = random() % 3 == 0 ? DepthLimit(limit) : DepthLimit();
                start(std::move(spec));
            }
            simulation_->step();
            if (!transfers_.empty()) {
                engine::Transfer* one = transfers_[random() % transfers_.size()];
                if (random() % 8 == 0) {
                    simulation_->core().cancel(*one);
                } else if (random() % 8 == 0 && !one->finished()) {
                    simulation_->core().set_priority(*one, static_cast<Priority>(random() % 3));
                }
            }
        }
        for (engine::Transfer* transfer : transfers_) {
            ASSERT_TRUE(simulation_->run(*transfer)) << "a transfer hangs";
            transfer->mark_observed();
            transfer->abandon();
            transfer->release();
        }
        transfers_.clear();
        ASSERT_LE(limit->seats(), 1U);
    }
}

}  // namespace
}  // namespace penstock::simulation
