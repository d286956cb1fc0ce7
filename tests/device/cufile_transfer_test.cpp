// SPDX-License-Identifier: Apache-2.0
// Files to and from GPU memory by cuFile, on the fake libcufile.so.0 and a tree that says that this
// machine has what it wants: what goes which way, what is refused, and that each byte is right.
#include "api/options.hpp"
#include "device/cuda/pointer.hpp"
#include "device/cufile/cufile_path.hpp"
#include "device/fake_gpu.hpp"
#include "device/machine_tree.hpp"
#include "device/mover/gpu_mover.hpp"
#include "device/mover/stream_order.hpp"
#include "engine/core.hpp"
#include "fake_gpu/cufile_control.hpp"
#include "os/local_file_system.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::device {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::uint64_t bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Bytes made(bytes);
    for (std::size_t i = 0; i < made.size(); i += sizeof(std::uint64_t)) {
        const std::uint64_t word = random();
        std::memcpy(&made[i], &word, std::min(sizeof(word), made.size() - i));
    }
    return made;
}

// An engine as the public one makes it, for a machine that is laid out by the test.
class CuFileTransfers : public OnFakeGpu {
protected:
    void SetUp() override {
        OnFakeGpu::SetUp();
        const auto cufile = fake_gpu::FakeCuFile::open();
        ASSERT_TRUE(cufile.has_value()) << "the fake cuFile is not loaded";
        cufile_ = *cufile;
        cufile_->reset_counters();
        tree_.common();
        tree_.nvidia_fs();
        path_ = folder_ / "file";
        content_ = random_bytes(5'000'001, 5);
        {
            const auto file = open(path_);
            if (!file->geometry().direct ||
                (file->info().file_system != "ext4" && file->info().file_system != "xfs")) {
                GTEST_SKIP() << "cuFile wants direct I/O on ext4 or xfs, and " << path_ << " is on "
                             << file->info().file_system;
            }
            tree_.disk(file->info().device, "nvme0n1");
        }
        make(GpuPath::kAuto, CachePolicy::kDirect);
        ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
        write_host(content_);
    }
    void TearDown() override {
        core_.reset();
        if (cufile_) {
            cufile_->set_short(0, 0);
            EXPECT_EQ(cufile_->counters().handles_now, 0U);
            EXPECT_EQ(cufile_->counters().handles_without_file, 0U);
            EXPECT_EQ(cufile_->counters().missing_contexts, 0U);
            EXPECT_EQ(cufile_->counters().unaligned, 0U);
        }
        OnFakeGpu::TearDown();
    }
    void make(GpuPath path, CachePolicy cache = CachePolicy::kDirect,
              const std::vector<TunedGpuPath>& tuned = {}) {
        core_.reset();
        EngineOptions options;
        options.cache = cache;
        options.gpu_path = path;
        way_ = make_device_path(path, tree_.folders(), tuned);
        core_ = *engine::Core::make(*api::core_options(options),
                                    {.file_system = os::local_file_system(),
                                     .backends = api::backends_for(BackendKind::kAuto),
                                     .clock = std::make_shared<base::SteadyClock>(),
                                     .make_mover = make_mover,
                                     .device_path = way_,
                                     .make_order = make_order,
                                     .check_devices = check_extents});
        cache_ = cache;
    }
    [[nodiscard]] std::shared_ptr<os::File> open(const std::string& path) const {
        FileOptions options;
        options.access = Access::kReadWrite;
        options.create = true;
        options.cache = cache_;
        auto file = os::local_file_system()->open(path, options);
        EXPECT_TRUE(file) << file.error().describe();
        return *file;
    }
    struct Result {
        std::string error;
        ErrorCode code = ErrorCode::kSystem;
    };
    Result run(engine::Op op, std::shared_ptr<os::File> file, std::vector<Extent> extents) const {
        engine::TransferSpec spec;
        spec.op = op;
        spec.files.push_back(std::move(file));
        spec.extents = engine::Extents(std::move(extents));
        auto started = core_->start(std::move(spec));
        if (!started) {
            return {started.error().describe(), started.error().code};
        }
        engine::Transfer* const transfer = *started;
        while (!transfer->wait(base::kForever)) {
        }
        Result result;
        if (const base::Error* error = transfer->error()) {
            result = {error->describe(), error->code};
        }
        transfer->mark_observed();
        transfer->abandon();
        transfer->release();
        return result;
    }
    void write_host(Bytes& bytes) const {
        const auto file = open(path_);
        EXPECT_EQ(run(engine::Op::kWrite, file, {{0, Memory(bytes), 0}}).error, "");
    }
    [[nodiscard]] static Memory memory_of(cuda::CUdeviceptr at, std::uint64_t bytes) {
        return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at)), bytes,
                MemoryKind::kDevice, 0};
    }
    [[nodiscard]] std::uint64_t count(engine::Counter engine::Counters::*which) const {
        std::uint64_t total = 0;
        core_->for_each_domain([&](engine::Domain& domain) {
            for (std::uint32_t i = 0; i < domain.channel_count(); ++i) {
                total += (domain.channel(i).counters().*which).get();
            }
        });
        return total;
    }
    [[nodiscard]] std::uint64_t straight_bytes() const {
        return count(&engine::Counters::device_path_bytes);
    }
    [[nodiscard]] std::uint64_t refusals() const {
        return count(&engine::Counters::device_path_refusals);
    }
    [[nodiscard]] Bytes part(std::uint64_t from, std::uint64_t bytes) const {
        const auto begin = content_.begin() + static_cast<std::ptrdiff_t>(from);
        return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
    }
    // Memory of the GPU at a multiple of 4 KiB, and `skip` bytes on.
    [[nodiscard]] cuda::CUdeviceptr aligned_bytes(std::uint64_t bytes, std::uint64_t skip = 0) {
        const cuda::CUdeviceptr memory = device_bytes(bytes + 8192);
        return base::align_up(std::uint64_t{memory}, std::uint64_t{4096}) + skip;
    }

    MachineTree tree_;
    support::TempFolder folder_;
    std::string path_;
    Bytes content_;
    std::optional<fake_gpu::FakeCuFile> cufile_;
    std::shared_ptr<engine::DevicePath> way_;
    std::shared_ptr<engine::Core> core_;
    CachePolicy cache_ = CachePolicy::kDirect;
};

TEST_F(CuFileTransfers, GoStraightAsFarAsTheyAreAligned) {
    const auto file = open(path_);
    const cuda::CUdeviceptr memory = aligned_bytes(content_.size());
    ASSERT_EQ(run(engine::Op::kRead, file, {{0, memory_of(memory, content_.size()), 0}}).error, "");
    EXPECT_TRUE(look(memory, content_.size()) == content_);
    // All but the last block, of which only a part is wanted.
    EXPECT_GE(straight_bytes(), content_.size() - (64 << 10) - 4096);
    EXPECT_EQ(refusals(), 0U);
    EXPECT_EQ(cufile_->counters().handles_made, 1U);

    put(memory, random_bytes(content_.size(), 8));
    const Bytes changed = look(memory, content_.size());
    ASSERT_EQ(run(engine::Op::kWrite, file, {{0, memory_of(memory, content_.size()), 0}}).error,
              "");
    EXPECT_GE(cufile_->counters().bytes_written, content_.size() - (64 << 10) - 4096);
    Bytes back(content_.size());
    ASSERT_EQ(run(engine::Op::kRead, file, {{0, Memory(back), 0}}).error, "");
    EXPECT_TRUE(back == changed);
    EXPECT_EQ(fake_->counters().missing_contexts, 0U);
    EXPECT_THAT(way_->text(), HasSubstr("nvidia-fs; cuFile 1.20"));
}

TEST_F(CuFileTransfers, ThatAreAlignedInOneOfBothAloneGoThroughTheHost) {
    const auto file = open(path_);
    const cuda::CUdeviceptr memory = aligned_bytes(2 << 20, 512);
    ASSERT_EQ(run(engine::Op::kRead, file, {{4096, memory_of(memory, 2 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 2 << 20) == part(4096, 2 << 20));
    EXPECT_EQ(straight_bytes(), 0U);
    // The same shift in both: the head through the host, the rest straight.
    ASSERT_EQ(run(engine::Op::kRead, file, {{512, memory_of(memory, 2 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 2 << 20) == part(512, 2 << 20));
    EXPECT_GE(straight_bytes(), std::uint64_t{2 << 20} - (64 << 10) - 8192);
}

// Cached pages come from the page cache; with cuFile forced they come from the device.
TEST_F(CuFileTransfers, LookIntoThePageCacheUnlessTheyAreForced) {
    const cuda::CUdeviceptr memory = aligned_bytes(4 << 20);
    Bytes warm(4 << 20);
    make(GpuPath::kAuto, CachePolicy::kCached);
    ASSERT_EQ(run(engine::Op::kRead, open(path_), {{0, Memory(warm), 0}}).error, "");
    make(GpuPath::kAuto, CachePolicy::kAuto);
    ASSERT_EQ(run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 4 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 4 << 20) == part(0, 4 << 20));
    EXPECT_EQ(straight_bytes(), 0U);
    make(GpuPath::kCuFile, CachePolicy::kAuto);
    ASSERT_EQ(run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 4 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 4 << 20) == part(0, 4 << 20));
    EXPECT_EQ(straight_bytes(), std::uint64_t{4 << 20});
    make(GpuPath::kBounce);
    EXPECT_EQ(way_, nullptr);
    ASSERT_EQ(run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 4 << 20), 0}}).error, "");
    EXPECT_EQ(straight_bytes(), 0U);
}

// Random extents, short results, and a fault at any call: each byte is right all the same.
TEST_F(CuFileTransfers, AreWholeWhateverCuFileDoes) {
    std::mt19937_64 random(11);
    const auto upto = [&](std::uint64_t most) { return random() % (most + 1); };
    constexpr std::uint64_t kMost = 4 << 20;
    const cuda::CUdeviceptr memory = aligned_bytes(kMost);
    for (int round = 0; round < 24; ++round) {
        fake_->calm();
        cufile_->set_short(upto(3), upto(2) == 0 ? upto(4095) : 1 + upto(700'000));
        const bool writes = upto(1) == 0;
        if (round % 2 == 0) {
            constexpr std::array<int, 5> kErrors{5, 5008, 5011, 5027, 5030};
            fake_->fail(upto(3) == 0 ? "cuFileHandleRegister"
                        : writes     ? "cuFileWrite"
                                     : "cuFileRead",
                        1 + upto(4), kErrors[upto(4)], 1 + upto(9));
        }
        const auto file = open(path_);
        std::vector<Extent> extents;
        std::uint64_t place = 0;
        std::uint64_t offset = upto(3) == 0 ? upto(5000) : upto(5) * 4096;
        while (extents.size() < 4) {
            const std::uint64_t bytes = upto(1) == 0 ? upto(9000) : upto(300) * 4096;
            const std::uint64_t skip = offset % 4096;
            const std::uint64_t begin = base::align_up(place, std::uint64_t{4096}) + skip;
            if (begin + bytes > kMost || offset + bytes > content_.size()) {
                break;
            }
            extents.push_back({offset, memory_of(memory + begin, bytes), 0});
            place = begin + bytes;
            offset += bytes + (upto(1) == 0 ? 0 : upto(20'000));
        }
        if (writes) {
            for (const Extent& extent : extents) {
                const Bytes fresh = random_bytes(extent.memory.bytes, random());
                put(reinterpret_cast<std::uintptr_t>(extent.memory.data), fresh);
                std::copy(fresh.begin(), fresh.end(),
                          content_.begin() + static_cast<std::ptrdiff_t>(extent.offset));
            }
        }
        ASSERT_EQ(run(writes ? engine::Op::kWrite : engine::Op::kRead, file, extents).error, "")
            << round;
        for (const Extent& extent : extents) {
            if (!writes) {
                ASSERT_TRUE(look(reinterpret_cast<std::uintptr_t>(extent.memory.data),
                                 extent.memory.bytes) == part(extent.offset, extent.memory.bytes))
                    << round;
            }
        }
        if (writes) {
            Bytes back(content_.size());
            ASSERT_EQ(run(engine::Op::kRead, file, {{0, Memory(back), 0}}).error, "");
            ASSERT_TRUE(back == content_) << round;
        }
    }
    EXPECT_GT(straight_bytes(), 0U);
    EXPECT_GT(refusals(), 0U);
}

TEST_F(CuFileTransfers, LeaveAFileAloneThatRefusesAgainAndAgain) {
    const auto file = open(path_);
    const cuda::CUdeviceptr memory = aligned_bytes(4 << 20);
    fake_->fail("cuFileRead", 1, 5008, 1000);
    ASSERT_EQ(run(engine::Op::kRead, file, {{0, memory_of(memory, 4 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 4 << 20) == part(0, 4 << 20));
    EXPECT_GE(refusals(), 4U);
    const std::uint64_t calls = fake_->calls("cuFileRead");
    ASSERT_EQ(run(engine::Op::kRead, file, {{0, memory_of(memory, 4 << 20), 0}}).error, "");
    EXPECT_EQ(fake_->calls("cuFileRead"), calls);
    EXPECT_THAT(way_->text(), HasSubstr("CU_FILE_IO_NOT_SUPPORTED (5008)"));
    fake_->calm();
    make(GpuPath::kCuFile);
    const auto result = run(engine::Op::kRead, file, {{0, memory_of(memory, 4 << 20), 0}});
    EXPECT_THAT(result.error, HasSubstr("in a row were refused"));
    EXPECT_EQ(result.code, ErrorCode::kUnsupported);
}

// What `penstock tune --device` found for a disk and a GPU is what 'auto' takes; others, and who
// forces a way, are not concerned.
TEST_F(CuFileTransfers, GoTheWayThatWasFasterForTheirDiskAndGpu) {
    const DeviceId disk = open(path_)->info().device;
    const std::string pci = gpus().gpus.at(0).pci;
    const auto bytes_by_cufile = [&](GpuPath path, const std::vector<TunedGpuPath>& tuned) {
        make(path, CachePolicy::kDirect, tuned);
        cufile_->reset_counters();
        const cuda::CUdeviceptr memory = aligned_bytes(4 << 20);
        EXPECT_EQ(run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 4 << 20), 0}}).error,
                  "");
        EXPECT_TRUE(look(memory, 4 << 20) == Bytes(content_.begin(), content_.begin() + (4 << 20)));
        return cufile_->counters().bytes_read;
    };
    constexpr std::uint64_t kAll = 4 << 20;
    EXPECT_EQ(bytes_by_cufile(GpuPath::kAuto, {{disk, pci, GpuPath::kBounce}}), 0U);
    EXPECT_THAT(way_->text(), HasSubstr("pinned memory was faster (penstock tune)"));
    EXPECT_EQ(bytes_by_cufile(GpuPath::kAuto, {{disk, pci, GpuPath::kCuFile}}), kAll);
    EXPECT_THAT(way_->text(), ::testing::Not(HasSubstr("not used")));
    EXPECT_EQ(bytes_by_cufile(GpuPath::kAuto, {{disk, "0000:ff:00.0", GpuPath::kBounce},
                                               {{1, 2}, pci, GpuPath::kBounce}}),
              kAll);
    EXPECT_EQ(bytes_by_cufile(GpuPath::kCuFile, {{disk, pci, GpuPath::kBounce}}), kAll);
}

TEST_F(CuFileTransfers, ThatAreForcedSayWhyTheyCannot) {
    tree_.remove("proc/modules");
    make(GpuPath::kCuFile);
    const cuda::CUdeviceptr memory = aligned_bytes(1 << 20);
    const std::uint64_t calls = fake_->calls("cuFileDriverOpen");
    const auto result = run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 1 << 20), 0}});
    EXPECT_EQ(result.code, ErrorCode::kUnsupported) << result.error;
    EXPECT_THAT(result.error, HasSubstr("proc/modules"));
    EXPECT_THAT(result.error, HasSubstr("choose 'auto'"));
    EXPECT_EQ(fake_->calls("cuFileDriverOpen"), calls) << "it may not return";
    // The host's memory is not asked after.
    Bytes host(1 << 20);
    EXPECT_EQ(run(engine::Op::kRead, open(path_), {{0, Memory(host), 0}}).error, "");
    make(GpuPath::kAuto);
    EXPECT_EQ(run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 1 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 1 << 20) == part(0, 1 << 20));
    EXPECT_THAT(way_->text(), HasSubstr("proc/modules"));
}

TEST_F(CuFileTransfers, EndWhereTheFileDoes) {
    const auto file = open(path_);
    const cuda::CUdeviceptr memory = aligned_bytes(1 << 20);
    const auto result = run(engine::Op::kRead, file, {{4 << 20, memory_of(memory, 1 << 20), 0}});
    EXPECT_EQ(result.code, ErrorCode::kEndOfFile) << result.error;
    EXPECT_THAT(result.error, HasSubstr("5000001 bytes"));
}

TEST_F(CuFileTransfers, OfManyThreadsAndFilesKeepTheirBytesApart) {
    std::vector<std::thread> threads;
    std::vector<cuda::CUdeviceptr> memories;
    for (int i = 0; i < 4; ++i) {
        memories.push_back(aligned_bytes(3 << 20));
    }
    cufile_->set_short(5, 300'000);
    for (std::size_t i = 0; i < memories.size(); ++i) {
        threads.emplace_back([&, i] {
            for (int round = 0; round < 4; ++round) {
                const auto file = open(path_);
                EXPECT_EQ(
                    run(engine::Op::kRead, file, {{i << 18, memory_of(memories[i], 3 << 20), 0}})
                        .error,
                    "");
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (std::size_t i = 0; i < memories.size(); ++i) {
        EXPECT_TRUE(look(memories[i], 3 << 20) == part(i << 18, 3 << 20));
    }
}

// Answers of the library are kept, so each of these is a process of its own.
using CuFileTransfersAlone = CuFileTransfers;

TEST_F(CuFileTransfersAlone, DISABLED_WithoutALibraryThatOpens) {
    const cuda::CUdeviceptr memory = aligned_bytes(2 << 20);
    ASSERT_EQ(run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 2 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 2 << 20) == part(0, 2 << 20));
    EXPECT_EQ(straight_bytes(), 0U);
    EXPECT_EQ(cufile_->counters().reads, 0U);
    make(GpuPath::kCuFile);
    const auto result = run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 2 << 20), 0}});
    EXPECT_EQ(result.code, ErrorCode::kUnsupported);
    EXPECT_THAT(result.error, ::testing::AnyOf(HasSubstr("cuFileDriverOpen failed"),
                                               HasSubstr("compatibility mode")));
}

// Another library of the process has it open, with its compatibility mode.
TEST_F(CuFileTransfersAlone, DISABLED_AfterSomebodyWhoAllowsCompatibility) {
    void* library = ::dlopen("libcufile.so.0", RTLD_LAZY);
    auto* open_driver =
        reinterpret_cast<cufile::cuFileDriverOpen_type*>(::dlsym(library, "cuFileDriverOpen"));
    ASSERT_EQ(open_driver().err, cufile::CU_FILE_SUCCESS);
    const cuda::CUdeviceptr memory = aligned_bytes(2 << 20);
    ASSERT_EQ(run(engine::Op::kRead, open(path_), {{0, memory_of(memory, 2 << 20), 0}}).error, "");
    EXPECT_TRUE(look(memory, 2 << 20) == part(0, 2 << 20));
    EXPECT_EQ(cufile_->counters().reads, 0U);
    EXPECT_THAT(way_->text(), HasSubstr("compatibility mode"));
}

// The fake exits with 70 if libcufile would end before its calls do.
TEST_F(CuFileTransfersAlone, DISABLED_EndWithTheProcess) {
    const cuda::CUdeviceptr memory = aligned_bytes(4 << 20);
    engine::TransferSpec spec;
    spec.files.push_back(open(path_));
    spec.extents = engine::Extents(std::vector<Extent>{{0, memory_of(memory, 4 << 20), 0}});
    ASSERT_TRUE(core_->start(std::move(spec)));
    while (fake_->calls("cuFileHandleRegister") == 0) {
        ::usleep(1000);
    }
    ::usleep(20'000);
    tree_.remove("");  // exit() destroys no fixture
    std::filesystem::remove_all(folder_.path());
    std::exit(0);
}

TEST_F(CuFileTransfers, MayBeUnderWayWhenTheProcessEnds) {
    EXPECT_TRUE(runs_alone("CuFileTransfersAlone.DISABLED_EndWithTheProcess",
                           {"FAKE_CUFILE_DELAY_US=150000"}));
}

TEST_F(CuFileTransfers, GoThroughTheHostWhereCuFileDoesNotOpen) {
    for (const char* setting : {"FAKE_CUFILE_DIRECT=0", "FAKE_GPU_FAIL=cuFileDriverOpen:1:5033",
                                "FAKE_GPU_FAIL=cuFileSetParameterBool:1:5022"}) {
        EXPECT_TRUE(runs_alone("CuFileTransfersAlone.DISABLED_WithoutALibraryThatOpens", {setting}))
            << setting;
    }
    EXPECT_TRUE(
        runs_alone("CuFileTransfersAlone.DISABLED_AfterSomebodyWhoAllowsCompatibility", {}));
}

}  // namespace
}  // namespace penstock::device
