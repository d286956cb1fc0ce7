// SPDX-License-Identifier: Apache-2.0
// Engines under a virtual clock: random work with random faults by the seed, each seed twice to the
// same trace; and how close the engine comes to what the model allows.
#include "simulation/transfers.hpp"
#include "support/same_bytes.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <vector>

namespace penstock::simulation {
namespace {

constexpr DiskModel kModel{
    .request_ns = 100'000, .lanes = 32, .bytes_per_second = 7e9, .jitter_ns = 0};

std::uint64_t seeds_wanted() {
    const char* text = std::getenv("PENSTOCK_TEST_SEEDS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 100'000;
}

// A plan depends on where memory lies in its page, so a replay needs it at the same place there.
template <typename T>
struct PageAllocator {
    using value_type = T;
    PageAllocator() = default;
    template <typename U>
    explicit PageAllocator(const PageAllocator<U>& /*other*/) {}
    T* allocate(std::size_t n) {
        return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{4096}));
    }
    void deallocate(T* p, std::size_t /*n*/) { ::operator delete (p, std::align_val_t{4096}); }
    bool operator==(const PageAllocator& /*other*/) const { return true; }
};
using Bytes = std::vector<std::byte, PageAllocator<std::byte>>;

// One random life: a few transfers over a small disk that misbehaves, checked against a model.
struct Life {
    // Most lives are small, so that there can be many; what needs room comes in every sixteenth.
    explicit Life(std::uint64_t seed)
        : scale(seed % 16 == 0 ? 8 : 1), file_bytes(scale << 15), random(seed) {
        SimulationOptions options;
        options.seed = seed;
        options.shape.memory_align = below(2) == 0 ? 4 : 512;
        options.shape.read_align = below(2) == 0 ? 512 : 4096;
        options.shape.write_align = below(2) == 0 ? 512 : 4096;
        options.shape.direct = below(8) != 0;
        options.shape.page_cache = below(2) == 0;
        options.shape.cachestat = below(4) != 0;
        options.model = kModel;
        options.model.jitter_ns = 300'000;
        engine::ChannelOptions& channel = options.core.domain.channel;
        channel.depth = 1 + static_cast<std::uint32_t>(below(8));
        channel.block_bytes = static_cast<std::uint32_t>(scale << 13);
        channel.background_block_bytes = static_cast<std::uint32_t>(scale << 12);
        channel.background_bytes = scale << 14;
        channel.in_flight_bytes = scale << (13 + below(3));
        channel.gap_bytes = below(4) == 0 ? 0 : std::uint64_t{1} << below(14);
        channel.slots = {.large_bytes = channel.block_bytes,
                         .large_count = 1 + static_cast<std::uint32_t>(below(3)),
                         .small_bytes = 4096,
                         .small_count = static_cast<std::uint32_t>(below(4))};
        options.core.domain.channels = 1 + static_cast<std::uint32_t>(below(2));
        options.core.preallocate_bytes_min = scale << 12;
        simulation = std::make_unique<Simulation>(options);
        file = open(*simulation, "/file");
        truth.resize(file_bytes);
        memory.resize(file_bytes + 8192);
    }

    std::uint64_t below(std::uint64_t n) { return random() % n; }

    std::vector<Extent> random_extents() {
        std::vector<Extent> list;
        std::uint64_t offset = below(file_bytes / 2);
        std::uint64_t place = below(512);
        for (std::uint64_t i = 1 + below(6); i-- > 0;) {
            const std::uint64_t room = std::min(file_bytes - offset, memory.size() - place);
            const std::uint64_t bytes = below(std::min<std::uint64_t>(room, scale * 5000) + 1);
            list.push_back({offset, {memory.data() + place, bytes}, 0});
            offset += bytes +
                      (below(2) == 0
                           ? 0
                           : below(std::min<std::uint64_t>(file_bytes - offset - bytes + 1, 9000)));
            place += bytes;
        }
        return list;
    }

    // Those, and now and then in any order and over one another.
    std::vector<Extent> random_reads() {
        std::vector<Extent> list = random_extents();
        if (below(2) == 0) {
            for (Extent& extent : list) {
                if (below(3) == 0) {
                    extent.offset =
                        below(std::min(extent.offset, file_bytes - extent.memory.bytes) + 1);
                }
            }
            std::shuffle(list.begin(), list.end(), random);
        }
        return list;
    }

    // Writes what is known, then faults everything, then reads back what a fault did not undo.
    void live() {
        fill(truth);
        std::copy(truth.begin(), truth.end(), memory.begin());
        run(spec_of(engine::Op::kWrite, {file}, {{0, {memory.data(), file_bytes}, 0}}), false);
        plan_faults();
        for (int round = 0; round < 3; ++round) {
            if (below(2) == 0) {
                write_some();
            } else {
                read_some();
            }
        }
    }

    void write_some() {
        const auto list = random_extents();
        fill(memory);
        const bool sure = run(spec_of(engine::Op::kWrite, {file}, list), true);
        for (const Extent& extent : list) {
            std::memcpy(truth.data() + extent.offset, extent.memory.data, extent.memory.bytes);
        }
        if (!sure) {  // the extents are undefined now; make them known again
            simulation->disk().set_faults({});
            run(spec_of(engine::Op::kWrite, {file}, list), false);
            plan_faults();
        }
    }

    void read_some() {
        const auto list = random_reads();
        fill(memory);
        Bytes expected = memory;
        for (const Extent& extent : list) {
            std::memcpy(expected.data() + (extent.memory.data - memory.data()),
                        truth.data() + extent.offset, extent.memory.bytes);
        }
        if (run(spec_of(engine::Op::kRead, {file}, list), true)) {
            ASSERT_TRUE(support::same_bytes(memory, expected));
        } else {  // outside the extents nothing was touched
            for (const Extent& extent : list) {
                const auto place = extent.memory.data - memory.data();
                std::memset(memory.data() + place, 0, extent.memory.bytes);
                std::memset(expected.data() + place, 0, extent.memory.bytes);
            }
            ASSERT_TRUE(support::same_bytes(memory, expected));
        }
    }

    // Other bytes each time, and at each place. They are most of what a life costs, so that a
    // generator of one multiplication makes them.
    void fill(Bytes& bytes) {
        std::uint64_t word = random();
        std::byte* at = bytes.data();
        for (const std::byte* const end = at + bytes.size() / 8 * 8; at != end; at += 8) {
            word = word * 6364136223846793005U + 1442695040888963407U;
            std::memcpy(at, &word, 8);
        }
    }

    void plan_faults() {
        const std::uint64_t error_at = below(30);
        const std::uint64_t rate = 2 + below(20);
        const std::uint64_t salt = random();
        const std::uint64_t base_index = simulation->disk().operations();
        simulation->disk().set_faults([=](const DiskAccess& access) -> Fault {
            const std::uint64_t dice = (access.index * 2654435761U + salt) >> 7;
            if (access.index > base_index + error_at && dice % 40 == 0) {
                return {.system_errno = EIO};
            }
            if (dice % rate == 0) {
                return {.system_errno = dice % 2 == 0 ? EAGAIN : EINTR};
            }
            if (dice % rate == 1) {
                return {.bytes_max = 512 + dice % 20'000};
            }
            return {};
        });
    }

    // True when it succeeded. A failure must be one that was planned, or our cancel.
    bool run(engine::TransferSpec spec, bool may_cancel) {
        spec.options.priority = static_cast<Priority>(below(3));
        engine::Transfer* transfer = start(*simulation, std::move(spec));
        const bool cancel = may_cancel && below(12) == 0;
        std::uint64_t steps = below(60);
        const bool ended = simulation->run_until([&] {
            if (cancel && steps-- == 0) {
                simulation->core().cancel(*transfer);
            }
            return transfer->finished();
        });
        EXPECT_TRUE(ended) << "a transfer hangs";
        const bool fine = transfer->status() == TransferStatus::kDone;
        if (!fine && transfer->status() != TransferStatus::kCancelled) {
            EXPECT_EQ(transfer->error()->system_errno, EIO) << transfer->error()->describe();
            EXPECT_EQ(transfer->error()->path, "/file");
        }
        transfer->mark_observed();
        let_go(transfer);
        EXPECT_EQ(simulation->core().running(), 0U);
        return fine;
    }

    std::uint64_t scale;
    std::uint64_t file_bytes;
    std::mt19937_64 random;
    std::unique_ptr<Simulation> simulation;
    std::shared_ptr<os::File> file;
    Bytes truth;
    Bytes memory;
};

TEST(Simulation, RandomLivesAreRightAndReplay) {
    const std::uint64_t seeds = seeds_wanted();
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        SCOPED_TRACE(seed);
        Life life(seed);
        life.live();
        if (HasFailure()) {
            FAIL() << "seed " << seed << " fails, and replays by itself";
        }
        if (seed % 50 == 0) {
            Life again(seed);
            again.live();
            ASSERT_EQ(life.simulation->disk().trace(), again.simulation->disk().trace());
            ASSERT_EQ(life.simulation->now(), again.simulation->now());
        }
    }
}

TEST(Simulation, SeedsDiffer) {
    Life one(1);
    Life two(2);
    one.live();
    two.live();
    EXPECT_NE(one.simulation->disk().trace(), two.simulation->disk().trace());
}

// ---- gaps

// 200 rows of 100 bytes, every 2,000, in an order of their own.
struct GapsLife {
    static constexpr std::uint64_t kRows = 200;
    static constexpr std::uint64_t kRowBytes = 100;
    static constexpr std::uint64_t kStride = 2000;

    GapsLife() : simulation({}), file(open(simulation, "/file")) {
        std::mt19937_64 random(1);
        for (std::byte& byte : truth) {
            byte = static_cast<std::byte>(random());
        }
        engine::Transfer* const written =
            start(simulation,
                  spec_of(engine::Op::kWrite, {file}, {{0, {truth.data(), truth.size()}, 0}}));
        EXPECT_TRUE(simulation.run(*written));
        let_go(written);
        for (std::uint64_t i = 0; i < kRows; ++i) {
            list.push_back({i * kStride, {memory.data() + i * kRowBytes, kRowBytes}, 0});
            std::memcpy(expected.data() + i * kRowBytes, truth.data() + i * kStride, kRowBytes);
        }
        std::shuffle(list.begin(), list.end(), random);
        requests = simulation.disk().operations();
    }

    engine::Transfer* read(bool allow_short = false) {
        engine::TransferSpec spec = spec_of(engine::Op::kRead, {file}, list);
        spec.options.allow_short = allow_short;
        engine::Transfer* const transfer = start(simulation, std::move(spec));
        EXPECT_TRUE(simulation.run(*transfer));
        transfer->mark_observed();
        requests = simulation.disk().operations() - requests;
        return transfer;
    }

    void refuse(std::uint64_t begin, std::uint64_t end) {
        simulation.disk().set_faults([=](const DiskAccess& access) -> Fault {
            const bool hit = access.offset < end && access.offset + access.bytes > begin;
            return hit ? Fault{.system_errno = EIO} : Fault{};
        });
    }

    Simulation simulation;
    std::shared_ptr<os::File> file;
    Bytes truth = Bytes(kRows * kStride);
    Bytes memory = Bytes(kRows * kRowBytes);
    Bytes expected = Bytes(kRows * kRowBytes);
    std::vector<Extent> list;
    std::uint64_t requests = 0;
};

TEST(SimulationGaps, ShuffledRowsAreOneRequest) {
    GapsLife life;
    engine::Transfer* const transfer = life.read();
    EXPECT_EQ(transfer->status(), TransferStatus::kDone);
    EXPECT_EQ(life.requests, 1U);
    EXPECT_EQ(life.memory, life.expected);
    let_go(transfer);
}

TEST(SimulationGaps, WhatCannotBeReadBetweenTwoExtentsHurtsNobody) {
    GapsLife life;
    life.refuse(50 * GapsLife::kStride + 1024, 50 * GapsLife::kStride + 1536);
    engine::Transfer* const transfer = life.read();
    EXPECT_EQ(transfer->status(), TransferStatus::kDone);
    EXPECT_EQ(life.memory, life.expected);
    let_go(transfer);
}

TEST(SimulationGaps, WhatCannotBeReadOfAnExtentFailsAtItsPlace) {
    GapsLife life;
    life.refuse(50 * GapsLife::kStride, 50 * GapsLife::kStride + 1);
    engine::Transfer* const transfer = life.read();
    ASSERT_EQ(transfer->status(), TransferStatus::kFailed);
    EXPECT_EQ(transfer->error()->system_errno, EIO);
    EXPECT_EQ(transfer->error()->offset, 50 * GapsLife::kStride);
    let_go(transfer);
}

// Inside an extent, in a gap, at the end of one: each extent's bytes in the order of the list.
TEST(SimulationGaps, AFileThatEndsAmongThem) {
    for (const std::uint64_t past : {0U, 1U, 100U, 101U, 1999U}) {
        for (const bool apart : {false, true}) {
            GapsLife life;
            const std::uint64_t end = 70 * GapsLife::kStride + past;
            ASSERT_TRUE(life.file->truncate(end));
            if (apart) {
                life.refuse(50 * GapsLife::kStride + 1024, 50 * GapsLife::kStride + 1536);
            }
            engine::Transfer* const transfer = life.read(true);
            ASSERT_EQ(transfer->status(), TransferStatus::kDone);
            for (std::size_t i = 0; i < life.list.size(); ++i) {
                const Extent& extent = life.list[i];
                const std::uint64_t bytes =
                    std::min(GapsLife::kRowBytes, end - std::min(end, extent.offset));
                EXPECT_EQ(transfer->extent_bytes(i), bytes) << "extent " << i;
                EXPECT_EQ(std::memcmp(extent.memory.data, life.truth.data() + extent.offset, bytes),
                          0);
            }
            let_go(transfer);
        }
    }
}

// ---- how close to the model

SimulationOptions hollow_options() {
    SimulationOptions options;
    options.shape.hollow = true;
    options.shape.memory_align = 4;
    options.model = kModel;
    return options;
}

std::byte* nowhere(std::uint64_t offset) {
    return reinterpret_cast<std::byte*>((std::uint64_t{1} << 44) + offset);
}

std::shared_ptr<os::File> hollow_file(Simulation& simulation, const std::string& path,
                                      std::uint64_t bytes) {
    auto file = open(simulation, path);
    EXPECT_TRUE(file->truncate(bytes));
    return file;
}

double seconds_of(Simulation& simulation, engine::TransferSpec spec) {
    const base::Nanos begin = simulation.now();
    engine::Transfer* transfer = start(simulation, std::move(spec));
    EXPECT_TRUE(simulation.run(*transfer));
    EXPECT_EQ(transfer->status(), TransferStatus::kDone);
    let_go(transfer);
    return static_cast<double>(simulation.now() - begin) * 1e-9;
}

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(SimulationBound, OneGiBStraightAndThroughSlots) {
    const double bound = static_cast<double>(kGiB) / 7e9 + 100e-6;
    for (const bool slots : {false, true}) {
        SimulationOptions options = hollow_options();
        options.shape.memory_align = slots ? 512 : 4;
        Simulation simulation(options);
        auto file = hollow_file(simulation, "/file", kGiB);
        for (const engine::Op op : {engine::Op::kRead, engine::Op::kWrite}) {
            const double seconds =
                seconds_of(simulation, spec_of(op, {file}, {{0, {nowhere(64), kGiB}, 0}}));
            EXPECT_GE(bound / seconds, slots ? 0.95 : 0.98) << "slots " << slots;
        }
    }
}

TEST(SimulationBound, MillionRandomReads) {
    SimulationOptions options = hollow_options();
    options.core.domain.channel.gap_bytes = 0;  // a request a read
    Simulation simulation(options);
    auto file = hollow_file(simulation, "/file", kGiB * 64);
    std::mt19937_64 random(7);
    std::vector<std::uint64_t> ids(1'000'000);
    for (std::uint64_t& id : ids) {
        id = random() % (kGiB * 64 / 4096);
    }
    engine::TransferSpec spec = spec_of(engine::Op::kRead, {file}, {});
    spec.extents = *engine::extents_of(
        {.tables = {{.row_bytes = 4096}}, .ids = ids, .memory = {nowhere(0), ids.size() * 4096}},
        "read");
    const double seconds = seconds_of(simulation, std::move(spec));
    const double bound = 1e6 * 100e-6 / 32;
    EXPECT_GE(bound / seconds, 0.97);
}

TEST(SimulationBound, EightDevicesInOneTransfer) {
    SimulationOptions options = hollow_options();
    options.disks = 8;
    Simulation simulation(options);
    engine::TransferSpec spec;
    std::vector<Extent> extents;
    for (std::uint32_t d = 0; d < 8; ++d) {
        spec.files.push_back(hollow_file(simulation, "/" + std::to_string(d) + "/file", kGiB));
    }
    for (std::uint64_t block = 0; block < 8 * 64; ++block) {  // 16 MiB in turn
        extents.push_back({(block / 8) << 24,
                           {nowhere(block << 24), 1 << 24},
                           static_cast<std::uint32_t>(block % 8)});
    }
    spec.extents = engine::Extents(extents);
    const double seconds = seconds_of(simulation, std::move(spec));
    EXPECT_GE((static_cast<double>(kGiB) / 7e9 + 100e-6) / seconds, 0.95);
}

TEST(SimulationBound, UrgentReadBehindBackgroundWrites) {
    constexpr std::uint64_t kUrgentBytes = 4 << 20;
    Simulation idle(hollow_options());
    auto file = hollow_file(idle, "/file", kGiB);
    const double alone =
        seconds_of(idle, spec_of(engine::Op::kRead, {file}, {{0, {nowhere(0), kUrgentBytes}, 0}}));

    Simulation busy(hollow_options());
    auto big = hollow_file(busy, "/big", 100 * kGiB);
    auto small = hollow_file(busy, "/small", kGiB);
    engine::TransferSpec background =
        spec_of(engine::Op::kWrite, {big}, {{0, {nowhere(0), 100 * kGiB}, 0}});
    background.options.priority = Priority::kBackground;
    engine::Transfer* behind = start(busy, std::move(background));
    ASSERT_FALSE(busy.run_until([&] { return busy.now() > 20'000'000; }) && behind->finished());
    engine::TransferSpec urgent =
        spec_of(engine::Op::kRead, {small}, {{0, {nowhere(0), kUrgentBytes}, 0}});
    urgent.options.priority = Priority::kUrgent;
    const double behind_others = seconds_of(busy, std::move(urgent));
    EXPECT_LE(behind_others / alone, 1.3) << behind_others << " against " << alone;

    // Background alone still has the whole disk.
    const base::Nanos begin = busy.now();
    const std::uint64_t written = [&] {
        std::uint64_t bytes = 0;
        busy.core().for_each_domain([&](engine::Domain& domain) {
            bytes = domain.channel(0).counters().bytes_written.get();
        });
        return bytes;
    }();
    ASSERT_TRUE(busy.run_until([&] { return busy.now() > begin + 50'000'000; }));
    busy.core().for_each_domain([&](engine::Domain& domain) {
        const double rate =
            static_cast<double>(domain.channel(0).counters().bytes_written.get() - written) /
            (static_cast<double>(busy.now() - begin) * 1e-9);
        EXPECT_GE(rate, 0.95 * 7e9);
    });
    busy.core().cancel(*behind);
    ASSERT_TRUE(busy.run(*behind));
    let_go(behind);
}

TEST(SimulationBound, BytesCopied) {
    for (const std::uint32_t align : {4U, 512U}) {
        SimulationOptions options = hollow_options();
        options.shape.memory_align = align;
        Simulation simulation(options);
        auto file = hollow_file(simulation, "/file", kGiB);
        seconds_of(simulation, spec_of(engine::Op::kRead, {file}, {{0, {nowhere(64), kGiB}, 0}}));
        simulation.core().for_each_domain([&](engine::Domain& domain) {
            EXPECT_EQ(domain.channel(0).counters().copied_bytes.get(), align == 4 ? 0 : kGiB);
        });
    }
}

}  // namespace
}  // namespace penstock::simulation
