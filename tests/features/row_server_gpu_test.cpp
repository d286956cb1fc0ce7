// SPDX-License-Identifier: Apache-2.0
// The ring of a RowServer for kernels of a GPU, on the fake driver: its memory is pinned and mapped
// as long as the server lives, the warps of a launched kernel get their rows by it, and what does
// not come ends them in time. The kernel is that of examples/cuda, in the host's form.
#include "cuda/bfs_problem.hpp"
#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/features.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock::device {
namespace {

using test::error_of;
using testing::HasSubstr;
using namespace cuda;  // NVIDIA's names, as in its documents

using Edges = Array<std::uint32_t>;

constexpr std::uint64_t kSecond = 1'000'000'000;

// What nvcc makes of the kernel has this head; the fake reads no more of it.
std::string ptx() {
    const auto bytes = [](std::size_t size) { return std::to_string(size); };
    return ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry storage_bfs_level(\n"
           ".param .align 8 .b8 p0[" +
           bytes(sizeof(Edges)) + "],\n.param .align 8 .b8 p1[" +
           bytes(sizeof(storage_bfs::Level)) + "],\n.param .u64 p2\n)\n{ ret; }\n";
}

class RowServerOnGpu : public OnFakeGpu {
protected:
    void SetUp() override {
        OnFakeGpu::SetUp();
        ASSERT_EQ(driver_->cuCtxPushCurrent(primary_context(*driver_, 0).value()), CUDA_SUCCESS);
        ASSERT_EQ(driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        ASSERT_EQ(driver_->cuModuleLoadData(&module_, ptx().c_str()), CUDA_SUCCESS);
        ASSERT_EQ(driver_->cuModuleGetFunction(&kernel_, module_, "storage_bfs_level"),
                  CUDA_SUCCESS);
        problem_ = storage_bfs::make_problem(engine_, path_, 8);
        store_ = std::make_shared<FeatureStore>(FeatureStore::open(engine_, path_));
        offsets_ = values(problem_.offsets);
        std::vector<std::uint32_t> start(problem_.nodes(), storage_bfs::kUnseen);
        start[problem_.root] = 0;
        distance_ = values(start);
        frontier_ = device_bytes(4 * problem_.nodes());
        next_ = device_bytes(4 * problem_.nodes());
        next_nodes_ = device_bytes(8);
        status_ = values(std::vector{static_cast<unsigned>(RowStatus::kReady)});
        write(frontier_, std::vector{problem_.root});
    }
    void TearDown() override {
        fake_->calm();
        driver_->cuModuleUnload(module_);
        driver_->cuStreamDestroy(stream_);
        CUcontext popped = nullptr;
        driver_->cuCtxPopCurrent(&popped);
        OnFakeGpu::TearDown();
    }

    template <typename T>
    void write(CUdeviceptr to, const std::vector<T>& values) {
        ASSERT_TRUE(fake_->put(to, values.data(), values.size() * sizeof(T)));
    }
    template <typename T>
    [[nodiscard]] CUdeviceptr values(const std::vector<T>& values) {
        const CUdeviceptr made = device_bytes(values.size() * sizeof(T));
        write(made, values);
        return made;
    }
    template <typename T>
    [[nodiscard]] std::vector<T> read(CUdeviceptr from, std::size_t count) const {
        std::vector<T> found(count);
        EXPECT_TRUE(fake_->look(from, found.data(), count * sizeof(T)));
        return found;
    }
    template <typename T>
    static T* at(CUdeviceptr address) {
        return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
    }

    // A level of the search, from launch to end: the driver's result, and the warps' in status_.
    CUresult run_level(const Edges& edges, std::uint64_t frontier_nodes, std::uint32_t depth,
                       std::uint64_t limit_ns) {
        write(next_nodes_, std::vector<unsigned long long>{0});
        storage_bfs::Level level{.nodes = problem_.nodes(),
                                 .offsets = at<std::uint64_t>(offsets_),
                                 .distance = at<std::uint32_t>(distance_),
                                 .frontier = at<std::uint32_t>(frontier_),
                                 .frontier_nodes = frontier_nodes,
                                 .next = at<std::uint32_t>(next_),
                                 .next_nodes = at<unsigned long long>(next_nodes_),
                                 .depth = depth,
                                 .limit_ns = limit_ns};
        Edges given = edges;
        void* parameters[] = {&given, &level, &status_};
        const CUresult launched =
            driver_->cuLaunchKernel(kernel_, 2, 1, 1, 64, 1, 1, 0, stream_, parameters, nullptr);
        if (launched != CUDA_SUCCESS) {
            return launched;
        }
        CUresult result = CUDA_ERROR_NOT_READY;
        while ((result = driver_->cuStreamQuery(stream_)) == CUDA_ERROR_NOT_READY) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        return result;
    }
    [[nodiscard]] RowStatus status() const {
        return static_cast<RowStatus>(read<unsigned>(status_, 1).front());
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    const std::string path_ = folder_ / "edges.features";
    storage_bfs::Problem problem_;
    std::shared_ptr<FeatureStore> store_;
    CUstream stream_ = nullptr;
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    CUdeviceptr offsets_ = 0;
    CUdeviceptr distance_ = 0;
    CUdeviceptr frontier_ = 0;
    CUdeviceptr next_ = 0;
    CUdeviceptr next_nodes_ = 0;
    CUdeviceptr status_ = 0;
};

TEST_F(RowServerOnGpu, AKernelSearchesAGraphOnStorage) {
    RowServer server(store_, 0, {.slots = 64, .gpu = 0});
    const auto edges = server.gpu_array<std::uint32_t>();
    std::uint64_t nodes = 1;
    for (std::uint32_t depth = 1; nodes > 0; ++depth) {
        ASSERT_EQ(run_level(edges, nodes, depth, 60 * kSecond), CUDA_SUCCESS);
        ASSERT_EQ(status(), RowStatus::kReady);
        nodes = read<unsigned long long>(next_nodes_, 1).front();
        std::swap(frontier_, next_);
    }
    EXPECT_TRUE(read<std::uint32_t>(distance_, problem_.nodes()) == problem_.expected);
    EXPECT_GT(problem_.reached, 10U);
    EXPECT_GT(server.stats().rows, 0U);
    EXPECT_EQ(server.stats().refused, 0U);
}

TEST_F(RowServerOnGpu, TheRingIsPinnedAndMappedAsLongAsItsServerLives) {
    const std::uint64_t before = fake_->counters().pinned_bytes_now;
    {
        RowServer server(store_, 0, {.slots = 64, .gpu = 0});
        EXPECT_GE(fake_->counters().pinned_bytes_now - before, 64 * (512 + 128));
        const auto edges = server.gpu_array<std::uint32_t>();
        for (void* const part :
             {static_cast<void*>(edges.ring().head), static_cast<void*>(edges.ring().slots)}) {
            EXPECT_EQ(device_memory(part, 64).kind, MemoryKind::kHost) << "not registered";
        }
        // Threads of the host may ask besides.
        const auto rows = server.array<std::uint32_t>();
        Loading loading = rows.load_async(0, kNoLimit);
        EXPECT_EQ(rows.wait(loading, kNoLimit), RowStatus::kReady);
        rows.release(loading);
        // A server without a GPU pins nothing, and has nothing for kernels.
        const std::uint64_t pinned = fake_->counters().pinned_bytes_now;
        const RowServer plain(store_, 0);
        EXPECT_EQ(fake_->counters().pinned_bytes_now, pinned);
        EXPECT_THAT(error_of([&] { static_cast<void>(plain.gpu_array<float>()); }).what(),
                    HasSubstr("set RowServerOptions::gpu"));
    }
    EXPECT_EQ(fake_->counters().pinned_bytes_now, before);
}

TEST_F(RowServerOnGpu, ARingThatCannotBePinnedIsAnErrorAndNoServer) {
    const std::uint64_t before = fake_->counters().pinned_bytes_now;
    fake_->fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(error_of([&] { RowServer(store_, 0, {.gpu = 0}); }).reason(),
              ErrorCode::kOutOfMemory);
    EXPECT_EQ(fake_->counters().pinned_bytes_now, before);
    EXPECT_THAT(error_of([&] { RowServer(store_, 0, {.gpu = 7}); }).what(), HasSubstr("GPU 7"));
    RowServer server(store_, 0, {.gpu = 0});
    EXPECT_EQ(run_level(server.gpu_array<std::uint32_t>(), 1, 1, 60 * kSecond), CUDA_SUCCESS);
    EXPECT_EQ(status(), RowStatus::kReady);
}

// All slots are held by the host, so no row can be asked for.
TEST_F(RowServerOnGpu, AWarpWhoseTimeIsOverEnds) {
    RowServer server(store_, 0, {.slots = 1, .gpu = 0});
    const auto rows = server.array<std::uint32_t>();
    Loading held = rows.load_async(0, kNoLimit);
    ASSERT_EQ(rows.wait(held, kNoLimit), RowStatus::kReady);
    const auto edges = server.gpu_array<std::uint32_t>();
    ASSERT_EQ(run_level(edges, 1, 1, kSecond / 50), CUDA_SUCCESS);
    EXPECT_EQ(status(), RowStatus::kTimedOut);
    rows.release(held);
    write(status_, std::vector{static_cast<unsigned>(RowStatus::kReady)});
    ASSERT_EQ(run_level(edges, 1, 1, 60 * kSecond), CUDA_SUCCESS) << "it goes on afterwards";
    EXPECT_EQ(status(), RowStatus::kReady);
}

TEST_F(RowServerOnGpu, AStopEndsTheWarpsOfAKernel) {
    RowServer server(store_, 0, {.slots = 1, .gpu = 0});
    const auto rows = server.array<std::uint32_t>();
    Loading held = rows.load_async(0, kNoLimit);
    ASSERT_EQ(rows.wait(held, kNoLimit), RowStatus::kReady);
    std::thread stopper([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        server.stop();
    });
    EXPECT_EQ(run_level(server.gpu_array<std::uint32_t>(), 1, 1, kNoLimit), CUDA_SUCCESS);
    stopper.join();
    EXPECT_EQ(status(), RowStatus::kStopped);
}

// The ring of a server without a GPU, and a list that is no memory of the GPU: the driver says so.
TEST_F(RowServerOnGpu, DISABLED_ARingThatIsNotMappedIsAnIllegalAddress) {
    RowServer server(store_, 0);
    EXPECT_EQ(run_level(server.array<std::uint32_t>(), 1, 1, kSecond), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(RowServerOnGpuAlone, Run) {
    EXPECT_TRUE(runs_alone("RowServerOnGpu.DISABLED_ARingThatIsNotMappedIsAnIllegalAddress", {}));
}

}  // namespace
}  // namespace penstock::device
