// SPDX-License-Identifier: Apache-2.0
// A fault at every access of a transfer, one after the other: whatever is refused, wherever, the
// transfer ends exactly once, right or with the right error; memory around it is untouched and
// quiet; concurrent transfers are right; and nothing of the engine is lost, which a second
// transfer's time and requests on the same disk show.
#include "simulation/simulation.hpp"
#include "suite/suite.hpp"
#include "support/same_bytes.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <set>

namespace penstock::suite {
namespace {

using engine::Core;
using engine::CoreOptions;
using engine::Extents;
using engine::Files;
using engine::Op;
using engine::Transfer;
using engine::TransferSpec;
using simulation::DiskAccess;
using simulation::DiskShape;
using simulation::Fault;
using simulation::Simulation;
using simulation::SimulationOptions;

enum class Trouble { kNone, kEio, kEnospc, kShort, kAgain, kInterrupt, kCancel };
constexpr std::array kTroubles{Trouble::kEio,   Trouble::kEnospc,    Trouble::kShort,
                               Trouble::kAgain, Trouble::kInterrupt, Trouble::kCancel};

int errno_of(Trouble trouble) {
    switch (trouble) {
        case Trouble::kEio:
            return EIO;
        case Trouble::kEnospc:
            return ENOSPC;
        case Trouble::kAgain:
            return EAGAIN;
        case Trouble::kInterrupt:
            return EINTR;
        default:
            return 0;
    }
}

/// A transfer, and the engine that it runs on.
struct Scene {
    std::string name;
    bool write = false;
    DiskShape shape;
    std::uint32_t channels = 1;
    bool sync = false;
    bool gpu = false;  ///< every other extent is of its memory
};

void PrintTo(const Scene& scene, std::ostream* out) {
    *out << scene.name;
}

// Sanitizers make this slow, and it is one thread: they look at every third access.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kStride = 3;
#else
constexpr std::uint64_t kStride = 1;
#endif

constexpr std::size_t kFileBytes = 700'000;
constexpr std::uint32_t kDisks = 2;

// The initial content of the files; made once, for there are many stages.
const std::vector<std::vector<std::byte>>& first_contents() {
    static const std::vector<std::vector<std::byte>> contents{
        pattern(kFileBytes, 0), pattern(kFileBytes, 1), pattern(kFileBytes, 2),
        pattern(kFileBytes, 3)};
    return contents;
}

class Handle {
public:
    explicit Handle(Transfer* transfer) : transfer_(transfer) {}
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() {
        transfer_->mark_observed();
        transfer_->abandon();
        transfer_->release();
    }
    [[nodiscard]] Transfer& operator*() const { return *transfer_; }
    [[nodiscard]] Transfer* operator->() const { return transfer_; }

private:
    Transfer* transfer_;
};

// One simulation with its files, its transfer, and a concurrent transfer.
class Stage {
public:
    explicit Stage(const Scene& scene) : scene_(scene), sim_(options(scene)), arena_(600'000, 77) {
        for (std::uint32_t i = 0; i < 2 * kDisks; ++i) {
            const std::string path = "/" + std::to_string(i % kDisks) + "/file" + std::to_string(i);
            auto file =
                sim_.file_system().open(path, {.access = Access::kReadWrite, .create = true});
            contents_.push_back(first_contents()[i]);
            put_bytes(File(*file), 0, contents_.back());
            files_.push_back(std::move(*file));
        }
        const auto add = [&](std::uint32_t file, std::uint64_t offset, std::uint64_t bytes,
                             std::size_t align) {
            const bool on_gpu = scene_.gpu && file != 1;  // both of the run, so one request
            extents_.push_back({offset,
                                {arena_.take(bytes, align).data(), bytes,
                                 on_gpu ? MemoryKind::kDevice : MemoryKind::kHost, 0},
                                file});
        };
        add(0, 0, 131'072, 4096);  // straight
        add(1, 513, 100'000, 1);   // another disk; slots, and edges of a write
        add(2, 70'000, 3, 1);      // within a block
        add(2, 70'003, 9'000, 1);  // a run of two extents
        add(0, 200'001, 140'000, 4096);
        add(1, 650'000, 50'000, 1);  // to the end of the file
    }

    [[nodiscard]] std::uint64_t accesses(std::uint32_t disk) {
        return sim_.disk(disk).operations();
    }

    // The transfer under `trouble` at access number `at` of `disk`, counted from here. False when
    // it went by without that access.
    bool play(Trouble trouble, std::uint32_t disk, std::uint64_t at) {
        bool struck = false;
        const Handle beside(start(beside_spec()));
        Transfer* target = nullptr;
        std::uint64_t seen = 0;
        sim_.disk(disk).set_faults([&](const DiskAccess& access) -> Fault {
            // A concurrent transfer has its own part of the file.
            if (access.offset >= 390'000 && access.offset < 600'000) {
                return {};
            }
            if (target == nullptr || seen++ != at) {
                return {};
            }
            struck = true;
            struck_offset_ = access.offset;
            if (trouble == Trouble::kCancel) {
                sim_.core().cancel(*target);
                return {};
            }
            return {errno_of(trouble), trouble == Trouble::kShort ? 512 : UINT64_MAX};
        });
        const Handle transfer(start(spec()));
        target = &*transfer;
        EXPECT_TRUE(sim_.run(*transfer)) << "it hangs";
        for (const Extent& extent : extents_) {
            arena_.forget({extent.memory.data, extent.memory.bytes});
        }
        EXPECT_EQ(arena_.check(), "");
        EXPECT_TRUE(sim_.run(*beside)) << "what runs next to it hangs";
        EXPECT_EQ(arena_.check(), "") << "it was not quiet when it had finished";
        sim_.disk(disk).set_faults({});
        check_outcome(*transfer, struck ? trouble : Trouble::kNone, disk);
        EXPECT_EQ(beside->error(), nullptr);
        EXPECT_TRUE(
            support::same_bytes(beside_, std::span(contents_[3]).subspan(400'001, beside_.size())));
        EXPECT_EQ(arena_.check(), "");
        EXPECT_EQ(sim_.core().running(), 0U);
        return struck;
    }

    // Time and requests of a transfer that uses every request and slot that there is.
    std::pair<base::Nanos, std::uint64_t> full_depth() {
        const std::uint64_t before = requests();
        const base::Nanos begin = sim_.now();
        Arena into(1'100'000, 5);
        std::vector<Extent> extents;
        for (int i = 0; i < 16; ++i) {
            for (std::uint32_t f = 0; f < 2; ++f) {  // unaligned: all of it through slots
                extents.push_back({static_cast<std::uint64_t>(i) * 40'000 + 1,
                                   {into.take(30'000).data(), 30'000},
                                   f});
            }
        }
        for (const Extent& extent : extents) {
            into.forget({extent.memory.data, extent.memory.bytes});
        }
        TransferSpec reading;
        reading.files = engine::FileList(std::vector(files_));
        reading.extents = Extents(extents);
        const Handle transfer(start(std::move(reading)));
        EXPECT_TRUE(sim_.run(*transfer)) << "nothing goes any more";
        EXPECT_EQ(transfer->error(), nullptr);
        return {sim_.now() - begin, requests() - before};
    }

private:
    static SimulationOptions options(const Scene& scene) {
        SimulationOptions options;
        options.disks = kDisks;
        options.devices.resize(1);
        options.shape = scene.shape;
        options.model = {.request_ns = 100'000, .lanes = 4};
        options.core.preallocate_bytes_min = UINT64_MAX;  // faults of that: FaultsOfOperations
        options.core.domain.channels = scene.channels;
        engine::ChannelOptions& channel = options.core.domain.channel;
        channel.depth = 4;
        channel.block_bytes = 65536;
        channel.background_block_bytes = 65536;
        channel.in_flight_bytes = 4 * 65536;
        channel.slots = {
            .large_bytes = 65536, .large_count = 2, .small_bytes = 16384, .small_count = 4};
        return options;
    }

    Transfer* start(TransferSpec spec) {
        auto started = sim_.core().start(std::move(spec));
        EXPECT_TRUE(started);
        return *started;
    }

    TransferSpec spec() {
        TransferSpec out;
        out.op = scene_.write ? Op::kWrite : Op::kRead;
        out.files = engine::FileList(std::vector(files_));
        out.extents = Extents(extents_);
        out.options.sync = scene_.sync;
        return out;
    }

    TransferSpec beside_spec() {
        TransferSpec out;
        out.files = {files_[3]};
        out.extents = Extents(std::vector<Extent>{{400'001, {beside_.data(), beside_.size()}, 0}});
        return out;
    }

    std::uint64_t requests() {
        std::uint64_t count = 0;
        sim_.core().for_each_domain([&](engine::Domain& domain) {
            for (std::uint32_t i = 0; i < domain.channel_count(); ++i) {
                count += domain.channel(i).counters().requests.get();
            }
        });
        return count;
    }

    // The first byte of a file that was asked for, from the access on that was struck.
    [[nodiscard]] std::uint64_t first_wanted(const std::string& path) const {
        std::uint64_t first = UINT64_MAX;
        for (const Extent& extent : extents_) {
            const bool there = path.ends_with("/file" + std::to_string(extent.file));
            if (there && extent.offset + extent.memory.bytes > struck_offset_) {
                first = std::min(first, std::max(extent.offset, struck_offset_));
            }
        }
        return first;
    }

    void check_outcome(const Transfer& transfer, Trouble trouble, std::uint32_t disk) {
        const bool refused = trouble == Trouble::kEio || trouble == Trouble::kEnospc;
        ASSERT_TRUE(transfer.finished());
        if (refused) {
            ASSERT_NE(transfer.error(), nullptr) << "success was reported";
            EXPECT_EQ(transfer.error()->system_errno, errno_of(trouble));
            EXPECT_EQ(transfer.error()->operation, scene_.write ? "write" : "read");
            EXPECT_EQ(transfer.error()->path.substr(0, 3), "/" + std::to_string(disk) + "/");
            EXPECT_EQ(transfer.error()->offset, first_wanted(transfer.error()->path));
            EXPECT_EQ(transfer.status(), TransferStatus::kFailed);
        } else if (trouble == Trouble::kCancel && transfer.error() != nullptr) {
            EXPECT_EQ(transfer.status(), TransferStatus::kCancelled);
        } else if (trouble != Trouble::kCancel) {
            ASSERT_EQ(transfer.error(), nullptr) << transfer.error()->describe();
        }
        const bool whole = transfer.error() == nullptr;
        for (const Extent& extent : extents_) {
            const std::span<std::byte> piece(extent.memory.data, extent.memory.bytes);
            const auto at = static_cast<std::ptrdiff_t>(extent.offset);
            if (!scene_.write && whole) {
                arena_.expect(
                    piece.data(),
                    std::span(contents_[extent.file]).subspan(extent.offset, extent.memory.bytes));
            } else if (scene_.write) {
                std::copy(piece.begin(), piece.end(), contents_[extent.file].begin() + at);
            }
        }
        // The written extents; after a failure they are undefined, and nothing else has changed.
        for (std::uint32_t f = 0; scene_.write && f < files_.size(); ++f) {
            auto now = get_bytes(File(files_[f]), 0, kFileBytes + 1);
            ASSERT_EQ(now.size(), kFileBytes);
            for (const Extent& extent : extents_) {
                const auto at = static_cast<std::ptrdiff_t>(extent.offset);
                const std::byte* memory = extent.memory.data;
                if (extent.file == f && !whole) {
                    std::copy(memory, memory + extent.memory.bytes, now.begin() + at);
                }
            }
            EXPECT_TRUE(now == contents_[f]) << "file " << f;
        }
    }

    const Scene scene_;
    Simulation sim_;
    Arena arena_;
    std::vector<std::shared_ptr<os::File>> files_;
    std::vector<std::vector<std::byte>> contents_;
    std::vector<Extent> extents_;
    std::vector<std::byte> beside_ = std::vector<std::byte>(190'000);
    std::uint64_t struck_offset_ = 0;
};

class FaultPoints : public ::testing::TestWithParam<Scene> {};

const DiskShape kDirect{.memory_align = 512, .read_align = 512, .write_align = 512};
const DiskShape kLoose{.memory_align = 4, .read_align = 512, .write_align = 4096};
const DiskShape kBuffered{.direct = false};
INSTANTIATE_TEST_SUITE_P(
    Scenes, FaultPoints,
    ::testing::Values(Scene{"read", false, kDirect}, Scene{"write", true, kDirect},
                      Scene{"read_memory_align_4", false, kLoose},
                      Scene{"write_memory_align_4", true, kLoose},
                      Scene{"read_buffered", false, kBuffered},
                      Scene{"write_buffered", true, kBuffered},
                      Scene{"read_two_channels", false, kDirect, 2},
                      Scene{"write_two_channels_sync", true, kDirect, 2, true},
                      Scene{"read_to_a_gpu", false, kDirect, 1, false, true},
                      Scene{"write_from_a_gpu", true, kDirect, 1, false, true}),
    [](const auto& one) { return one.param.name; });

TEST_P(FaultPoints, EveryOneEndsTheTransferOnceAndRight) {
    Stage untroubled(GetParam());
    EXPECT_FALSE(untroubled.play(Trouble::kNone, 0, UINT64_MAX));
    const auto healthy = untroubled.full_depth();
    EXPECT_GT(healthy.second, 16U);
    for (std::uint32_t disk = 0; disk < kDisks; ++disk) {
        for (const Trouble trouble : kTroubles) {
            std::uint64_t at = 0;
            for (bool struck = true; struck; at += kStride) {
                SCOPED_TRACE("disk " + std::to_string(disk) + ", access " + std::to_string(at) +
                             ", trouble " + std::to_string(static_cast<int>(trouble)));
                Stage stage(GetParam());
                struck = stage.play(trouble, disk, at);
                const auto after = stage.full_depth();
                EXPECT_EQ(after.first, healthy.first) << "requests or slots were lost";
                EXPECT_EQ(after.second, healthy.second);
                if (HasFailure()) {
                    return;
                }
            }
            EXPECT_GE(at, 4U) << "there was hardly anything to strike";
        }
    }
}

// ---- troubles that do not end

class EndlessTrouble : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Directions, EndlessTrouble, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "write" : "read"; });

TEST_P(EndlessTrouble, EndsWithAnError) {
    for (const int system_errno : {EAGAIN, EINTR}) {
        for (const std::uint64_t offset : {0, 5}) {  // 5: slots and edges
            SimulationOptions options;
            options.model.request_ns = 1000;
            Simulation sim(options);
            const auto file =
                *sim.file_system().open("/file", {.access = Access::kReadWrite, .create = true});
            std::vector<std::byte> memory(300'000);
            put_bytes(File(file), 0, std::vector<std::byte>(400'000));
            sim.disk().set_faults(
                [=](const DiskAccess&) -> Fault { return {.system_errno = system_errno}; });
            TransferSpec spec;
            spec.op = GetParam() ? Op::kWrite : Op::kRead;
            spec.files = {file};
            spec.extents =
                Extents(std::vector<Extent>{{offset, {memory.data(), memory.size()}, 0}});
            const Handle transfer(*sim.core().start(std::move(spec)));
            ASSERT_TRUE(sim.run(*transfer));
            ASSERT_NE(transfer->error(), nullptr);
            EXPECT_EQ(transfer->error()->system_errno, system_errno);
        }
    }
}

// A shortage of some seconds (memory, room in a queue) is waited for, without asking all the time.
TEST_P(EndlessTrouble, ThatEndsAfterASecondIsSurvived) {
    for (const int system_errno : {EAGAIN, EINTR}) {
        for (const std::uint64_t offset : {0, 5}) {
            SimulationOptions options;
            options.model.request_ns = 1000;
            Simulation sim(options);
            const auto file =
                *sim.file_system().open("/file", {.access = Access::kReadWrite, .create = true});
            std::vector<std::byte> memory(300'000);
            put_bytes(File(file), 0, std::vector<std::byte>(400'000));
            std::uint64_t asked = 0;
            sim.disk().set_faults([&](const DiskAccess&) -> Fault {
                ++asked;
                return {.system_errno = sim.now() < 1'000'000'000 ? system_errno : 0};
            });
            TransferSpec spec;
            spec.op = GetParam() ? Op::kWrite : Op::kRead;
            spec.files = {file};
            spec.extents =
                Extents(std::vector<Extent>{{offset, {memory.data(), memory.size()}, 0}});
            const Handle transfer(*sim.core().start(std::move(spec)));
            ASSERT_TRUE(sim.run(*transfer));
            EXPECT_EQ(transfer->error(), nullptr);
            EXPECT_LT(asked, 500U);
        }
    }
}

TEST(EndlessWrites, WriteThatMovesNothingEndsWithAnError) {
    for (const std::uint64_t offset : {0, 5}) {
        Simulation sim({});
        const auto file =
            *sim.file_system().open("/file", {.access = Access::kReadWrite, .create = true});
        const std::vector<std::byte> memory(300'000);
        sim.disk().set_faults([](const DiskAccess& access) -> Fault {
            return {.bytes_max = access.offset > 100'000 ? 0 : UINT64_MAX};
        });
        TransferSpec spec;
        spec.op = Op::kWrite;
        spec.files = {file};
        spec.extents = Extents(std::vector<Extent>{
            {offset, {const_cast<std::byte*>(memory.data()), memory.size()}, 0},
            {400'000 + offset, {const_cast<std::byte*>(memory.data()), 100}, 0}});
        const Handle transfer(*sim.core().start(std::move(spec)));
        ASSERT_TRUE(sim.run(*transfer));
        ASSERT_NE(transfer->error(), nullptr) << "success was reported";
        EXPECT_EQ(transfer->error()->system_errno, EIO);
    }
}

// ---- everything else that a transfer asks of the file system

// The disk goes away at each operation in turn, through open, preallocate, writes and sync.
TEST(FaultsOfOperations, DiskGoesAwayAtEachInTurn) {
    const auto data = pattern(3'000'001, 1);
    bool succeeded = false;
    for (std::uint64_t at = 0; !succeeded; ++at) {
        ASSERT_LT(at, 100U);
        SimulationOptions options;
        options.core.domain.channel.block_bytes = 1 << 20;
        options.core.preallocate_bytes_min = 1 << 20;
        Simulation sim(options);
        sim.disk().cut_off_at(at);
        TransferSpec spec;
        spec.op = Op::kWrite;
        spec.paths = {"/one", "/two"};
        spec.options.sync = true;
        spec.extents =
            Extents(std::vector<Extent>{{3, {const_cast<std::byte*>(data.data()), data.size()}, 0},
                                        {0, {const_cast<std::byte*>(data.data()), 100}, 1}});
        const Handle transfer(*sim.core().start(std::move(spec)));
        ASSERT_TRUE(sim.run(*transfer));
        if (transfer->error() != nullptr) {
            EXPECT_EQ(transfer->error()->system_errno, EIO);
            EXPECT_THAT(transfer->error()->path, ::testing::AnyOf("/one", "/two"));
            continue;
        }
        succeeded = true;
        EXPECT_GE(at, sim.disk().operations()) << "success was reported";
        EXPECT_GT(at, 10U);
    }
}

std::uint64_t size_of(Simulation& sim, const std::string& path) {
    FileStatus status;
    return sim.disk().status(path, status) == 0 ? status.bytes : UINT64_MAX;
}

// Two files of which the first alone fits: neither grows.
TEST(FaultsOfOperations, RefusedRoomExtendsNoFile) {
    const auto data = pattern(3'000'000, 1);
    auto* const memory = const_cast<std::byte*>(data.data());
    for (const bool by_path : {true, false}) {
        SimulationOptions options;
        options.core.preallocate_bytes_min = 1 << 20;
        options.shape.reserves = true;
        options.shape.capacity_bytes = 5'000'000;
        Simulation sim(options);
        for (const char* path : {"/one", "/two"}) {
            ASSERT_TRUE((*sim.file_system().open(path, {.access = Access::kWrite, .create = true}))
                            ->truncate(1000));
        }
        TransferSpec spec;
        spec.op = Op::kWrite;
        if (by_path) {
            spec.paths = {"/one", "/two"};
        } else {
            spec.files = engine::FileList(std::vector<std::shared_ptr<os::File>>{
                *sim.file_system().open("/one", {.access = Access::kWrite}),
                *sim.file_system().open("/two", {.access = Access::kWrite})});
        }
        spec.extents = Extents(std::vector<Extent>{{1000, {memory, data.size()}, 0},
                                                   {1000, {memory, data.size()}, 1}});
        {
            const Handle transfer(*sim.core().start(std::move(spec)));
            ASSERT_TRUE(sim.run(*transfer));
            ASSERT_NE(transfer->error(), nullptr) << by_path;
            EXPECT_EQ(transfer->error()->system_errno, ENOSPC);
        }
        EXPECT_EQ(size_of(sim, "/one"), 1000U) << by_path;
        EXPECT_EQ(size_of(sim, "/two"), 1000U) << by_path;
        EXPECT_EQ(sim.disk().space().free_bytes, 5'000'000U - 2000U) << by_path;
    }
}

// io_uring at the limit on threads: a call that blocks needs none.
TEST(FaultsOfOperations, CancelledByTheKernelIsTriedByACall) {
    const auto data = pattern(3'000'000, 1);
    for (const bool forever : {false, true}) {
        Simulation sim(SimulationOptions{});
        std::set<std::uint64_t> struck;
        sim.disk().set_faults([&](const DiskAccess& access) -> Fault {
            const bool strike = struck.insert(access.offset).second || forever;
            return {.system_errno = strike ? ECANCELED : 0};
        });
        TransferSpec spec;
        spec.op = Op::kWrite;
        spec.paths = {"/one"};
        spec.extents = Extents(
            std::vector<Extent>{{0, {const_cast<std::byte*>(data.data()), data.size()}, 0}});
        const Handle transfer(*sim.core().start(std::move(spec)));
        ASSERT_TRUE(sim.run(*transfer));
        ASSERT_EQ(transfer->error() != nullptr, forever)
            << (forever ? "" : transfer->error()->describe());
        if (forever) {
            EXPECT_EQ(transfer->error()->system_errno, ECANCELED);
            EXPECT_THAT(transfer->error()->describe(), ::testing::HasSubstr("ulimit -u"));
        } else {
            EXPECT_GE(struck.size(), 3U);
        }
    }
}

// ---- the same with threads and a real clock, more coarsely

// One transfer with one fault at access number `at`; false when there was no such access.
bool play_with_threads(bool write, int system_errno, std::uint64_t at) {
    EngineOptions options;
    options.block_bytes = 65536;
    options.queue_depth = 4;
    const auto engine = TestEngine::make(EngineKind::kFake, options);
    auto data = pattern(400'001, 1);
    const File file = engine->files().open("/file", {.access = Access::kReadWrite, .create = true});
    put_bytes(file, 0, data);
    std::vector<std::byte> memory = pattern(data.size() - 3, 2);
    std::atomic<std::uint64_t> seen{0};
    engine->disk().set_faults([&](const DiskAccess&) -> Fault {
        const bool strike = seen++ == at;
        return {.system_errno = strike ? system_errno : 0,
                .bytes_max = strike && system_errno == 0 ? 512 : UINT64_MAX};
    });
    const auto error = error_of([&] {
        return engine->submit(request_of(write, file, memory.data(), memory.size(), 3))->wait();
    });
    const bool struck = seen.load() > at;
    engine->disk().set_faults({});
    EXPECT_EQ(error.has_value(), struck && system_errno == EIO);
    if (!error) {
        EXPECT_TRUE(get_bytes(file, 3, memory.size()) == memory);
    }
    std::vector<std::byte> again(100'000);  // it works on
    EXPECT_EQ(engine->read(file, again, 300'001), again.size());
    EXPECT_EQ(engine->stats().running, 0U);
    return struck;
}

TEST(FaultsWithThreads, EachAccessOnce) {
    for (const bool write : {false, true}) {
        for (const int system_errno : {EIO, EAGAIN, 0}) {
            std::uint64_t at = 0;
            while (play_with_threads(write, system_errno, at)) {
                ++at;
                ASSERT_FALSE(HasFailure()) << "access " << at - 1 << ", errno " << system_errno;
            }
            EXPECT_GT(at, 5U);
        }
    }
}

}  // namespace
}  // namespace penstock::suite
