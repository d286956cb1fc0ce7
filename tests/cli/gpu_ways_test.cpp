// SPDX-License-Identifier: Apache-2.0
// Which way between a disk and a GPU `penstock tune --device` chooses, and what it says.
#include "cli/tune/gpu_ways.hpp"

#include "api/options.hpp"
#include "base/clock.hpp"
#include "device/cuda/pointer.hpp"
#include "device/cufile/cufile_path.hpp"
#include "device/machine_tree.hpp"
#include "device/mover/gpu_mover.hpp"
#include "device/mover/stream_order.hpp"
#include "engine/core.hpp"
#include "fake_gpu/control.hpp"
#include "os/local_file_system.hpp"
#include "probe/gpu.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace penstock::cli {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

GpuWays some_ways() {
    GpuWays ways;
    ways.gpu.pci = "0000:3b:00.0";
    ways.disk = {259, 1};
    return ways;
}

// Rates that swing a little, `cufile` to one of pinned memory.
GpuWays compared(double cufile, bool writes = true) {
    GpuWays ways = some_ways();
    double swing = 1;
    compare_gpu_ways(ways, 5, [&](GpuPath way) {
        swing = swing > 1 ? 0.98 : 1.03;
        const double rate = 1e9 * swing * (way == GpuPath::kCuFile ? cufile : 1);
        return Rates{rate, writes ? rate : 0};
    });
    return ways;
}

TEST(GpuWaysTest, TheFasterWayIsChosen) {
    for (const bool writes : {true, false}) {
        const GpuWays straight = compared(2, writes);
        EXPECT_EQ(straight.choice, GpuPath::kCuFile);
        EXPECT_NEAR(straight.ratio.mean, 2, 0.2);
        EXPECT_THAT(gpu_ways_text(straight), HasSubstr("'auto' goes by cuFile"));
        const GpuWays bounce = compared(0.5, writes);
        EXPECT_EQ(bounce.choice, GpuPath::kBounce);
        EXPECT_THAT(gpu_ways_text(bounce), HasSubstr("'auto' goes through pinned memory"));
        EXPECT_EQ(text_of({bounce.tuned()}), "259:1 0000:3b:00.0 bounce");
    }
    const GpuWays equal = compared(1);
    EXPECT_EQ(equal.choice, GpuPath::kCuFile);
    EXPECT_THAT(gpu_ways_text(equal), HasSubstr("No difference found"));
}

// A way that is much faster to read and as much slower to write is no winner.
TEST(GpuWaysTest, ReadsAndWritesCountAlike) {
    GpuWays ways = some_ways();
    compare_gpu_ways(ways, 5, [](GpuPath way) {
        return way == GpuPath::kCuFile ? Rates{3e9, 1e9} : Rates{1e9, 3e9};
    });
    EXPECT_NEAR(ways.ratio.mean, 1, 1e-9);
    EXPECT_EQ(ways.choice, GpuPath::kCuFile);
}

TEST(GpuWaysTest, WithoutCuFileThereIsNoChoiceAndItSaysWhy) {
    GpuWays ways = some_ways();
    ways.why_not = "the module is not loaded";
    compare_gpu_ways(ways, 3, [](GpuPath way) {
        EXPECT_EQ(way, GpuPath::kBounce);
        return Rates{1e9, 0};
    });
    EXPECT_THAT(ways.bounce, SizeIs(3));
    EXPECT_EQ(ways.choice, GpuPath::kBounce);
    EXPECT_THAT(gpu_ways_text(ways), HasSubstr("no direct cuFile (the module is not loaded)"));
    EXPECT_EQ(gpu_ways_json(ways).at("why_no_cufile"), "the module is not loaded");

    GpuWays refused = some_ways();  // as cuFile itself does it, at the second turn
    int calls = 0;
    compare_gpu_ways(refused, 3, [&](GpuPath way) {
        if (way == GpuPath::kCuFile && ++calls == 2) {
            throw Error(ErrorCode::kUnsupported, 0, "cufile", {}, kNoOffset, "it refused");
        }
        return Rates{1e9, 0};
    });
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(refused.choice, GpuPath::kBounce);
    EXPECT_EQ(refused.why_not, "it refused");
}

TEST(GpuWaysTest, ARowOfAPairIsReplacedAndOthersStay) {
    const TunedGpuPath other{{8, 16}, "0000:3b:00.0", GpuPath::kCuFile};
    TunedGpuPath pair{{259, 1}, "0000:3b:00.0", GpuPath::kBounce};
    auto paths = with_pair(with_pair({}, other), pair);
    EXPECT_EQ(paths, (std::vector{other, pair}));
    pair.path = GpuPath::kCuFile;
    EXPECT_EQ(with_pair(paths, pair), (std::vector{other, pair}));
}

// The fake drivers and a machine that is laid out: copies at 100 MB/s against cuFile, then calls of
// cuFile that take 150 ms against copies.
class FakePair {
public:
    FakePair() {
        tree_.common();
        tree_.nvidia_fs();
        std::ofstream(path_) << std::string(kBytes, 'x');
        const auto file = *os::local_file_system()->open(path_, {.cache = CachePolicy::kDirect});
        usable_ = file->geometry().direct &&
                  (file->info().file_system == "ext4" || file->info().file_system == "xfs");
        tree_.disk(file->info().device, "nvme0n1");
    }
    [[nodiscard]] bool usable() const { return usable_; }
    Rates run(GpuPath way, std::byte* memory) const {
        EngineOptions options;
        options.cache = CachePolicy::kDirect;
        options.gpu_path = way;
        const auto core =
            *engine::Core::make(*api::core_options(options),
                                {.file_system = os::local_file_system(),
                                 .backends = api::backends_for(BackendKind::kAuto),
                                 .clock = std::make_shared<base::SteadyClock>(),
                                 .make_mover = device::make_mover,
                                 .device_path = device::make_device_path(way, tree_.folders()),
                                 .make_order = device::make_order,
                                 .check_devices = device::check_extents});
        const auto file = *os::local_file_system()->open(path_, {.cache = CachePolicy::kDirect});
        const base::SteadyClock clock;
        const base::Nanos start = clock.now();
        engine::TransferSpec spec;
        spec.op = engine::Op::kRead;
        spec.files.push_back(file);
        spec.extents =
            engine::Extents(std::vector<Extent>{{0, {memory, kBytes, MemoryKind::kDevice, 0}, 0}});
        engine::Transfer* const transfer = *core->start(std::move(spec));
        while (!transfer->wait(base::kForever)) {
        }
        const bool failed = transfer->error() != nullptr;
        transfer->mark_observed();
        transfer->abandon();
        transfer->release();
        if (failed) {
            throw Error(ErrorCode::kSystem, 0, "read", path_, kNoOffset, "failed");
        }
        return {static_cast<double>(kBytes) / (static_cast<double>(clock.now() - start) * 1e-9), 0};
    }
    static constexpr std::uint64_t kBytes = 8 << 20;

private:
    support::TempFolder folder_;
    const std::string path_ = folder_ / "file";
    device::MachineTree tree_;
    bool usable_ = false;
};

// CUDA may not be begun in this process, which others are forked from.
constexpr int kLikeThis = 0;
constexpr int kNoPlace = 77;

int choose_on_the_fake() {
    ::dlopen(PENSTOCK_FAKE_GPU, RTLD_LAZY | RTLD_LOCAL);
    ::dlopen(PENSTOCK_FAKE_CUFILE, RTLD_LAZY | RTLD_LOCAL);
    const FakePair pair;
    if (!pair.usable()) {
        return kNoPlace;
    }
    const probe::GpuMemory memory(0, FakePair::kBytes);
    const auto fake = fake_gpu::FakeGpu::find();
    const auto chosen = [&](double bounce_rate, const char* cufile_delay_us) {
        fake->set_rate(bounce_rate, bounce_rate);
        ::setenv("FAKE_CUFILE_DELAY_US", cufile_delay_us, 1);
        GpuWays ways = some_ways();
        compare_gpu_ways(ways, 4, [&](GpuPath way) { return pair.run(way, memory.data()); });
        return ways;
    };
    const GpuWays straight = chosen(1e8, "0");
    const GpuWays bounce = chosen(0, "150000");
    const bool right = straight.choice == GpuPath::kCuFile && straight.ratio.low > 1 &&
                       straight.why_not.empty() && bounce.choice == GpuPath::kBounce &&
                       bounce.why_not.empty();
    if (!right) {
        std::fprintf(stderr, "%s\n%s\n", gpu_ways_text(straight).c_str(),
                     gpu_ways_text(bounce).c_str());
    }
    return right ? kLikeThis : 1;
}

TEST(GpuWaysTest, OnTheFakeTheFasterWayIsMeasuredTimed) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(choose_on_the_fake());
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == kNoPlace) {
        GTEST_SKIP() << "cuFile wants direct I/O on ext4 or xfs, and temporary files are elsewhere";
    }
    EXPECT_EQ(WEXITSTATUS(status), kLikeThis);
}

}  // namespace
}  // namespace penstock::cli
