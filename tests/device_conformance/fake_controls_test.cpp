// SPDX-License-Identifier: Apache-2.0
// Statements on the fake driver alone: its controls, and what it does more strictly than a GPU.
// Skipped with NVIDIA's.
#include "device_conformance/gpu_driver.hpp"
#include "fake_gpu/control.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

namespace penstock::device::cuda::conformance {
namespace {

constexpr std::size_t kMiB = 1U << 20U;

class FakeControls : public Gpu {
protected:
    void SetUp() override {
        Gpu::SetUp();
        fake_ = fake_gpu::FakeGpu::find();
        if (gpu != nullptr && !fake_) {
            GTEST_SKIP() << "this driver is not the fake";
        }
        if (fake_) {
            fake_->calm();
            fake_->reset_counters();
        }
    }
    void TearDown() override {
        if (fake_) {
            fake_->calm();
        }
        Gpu::TearDown();
    }

    /// Seconds until the device has done what `work` gives it.
    double seconds(const std::function<void()>& work) {
        const auto begin = std::chrono::steady_clock::now();
        work();
        EXPECT_EQ(gpu->cuCtxSynchronize(), CUDA_SUCCESS);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

    std::optional<fake_gpu::FakeGpu> fake_;
};

TEST_F(FakeControls, FreshMemoryIsPoisoned) {
    EXPECT_THAT(bytes_of(device_memory(10'000), 10'000), testing::Each(0xDB));
}

TEST_F(FakeControls, AHostCopyToDeviceMemoryFaults) {
    const CUdeviceptr memory = device_memory(4096);
    EXPECT_DEATH(std::memset(reinterpret_cast<void*>(memory), 1, 16), "");
}

TEST_F(FakeControls, CopiesPastTheEndAreRefused) {
    const CUdeviceptr memory = device_memory(1000);
    std::vector<unsigned char> host(1001);
    EXPECT_EQ(gpu->cuMemcpyHtoD(memory, host.data(), 1001), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->cuMemcpyDtoH(host.data(), memory + 1, 1000), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->cuMemcpyHtoD(memory, host.data(), 1000), CUDA_SUCCESS);
}

TEST_F(FakeControls, HostMemoryThatIsPinnedInPartIsRefused) {
    const CUdeviceptr memory = device_memory(3 * 4096);
    const std::unique_ptr<void, void (*)(void*)> host(std::aligned_alloc(4096, 3 * 4096),
                                                      std::free);
    auto* bytes = static_cast<unsigned char*>(host.get());
    std::memset(bytes, 0, 3 * 4096);
    OK(gpu->cuMemHostRegister(bytes + 4096, 4096, 0));
    EXPECT_EQ(gpu->cuMemcpyHtoD(memory, bytes, 8192), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->cuMemcpyHtoD(memory, bytes + 4096, 8192), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->cuMemcpyHtoD(memory, bytes + 8192, 4096), CUDA_SUCCESS);
    OK(gpu->cuMemHostUnregister(bytes + 4096));
}

TEST_F(FakeControls, HandlesAreNotUsedAgain) {
    CUstream first = nullptr;
    CUstream second = nullptr;
    OK(gpu->cuStreamCreate(&first, 0));
    OK(gpu->cuStreamDestroy(first));
    OK(gpu->cuStreamCreate(&second, 0));
    EXPECT_NE(first, second);
    EXPECT_EQ(gpu->cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(gpu->cuStreamDestroy(first), CUDA_ERROR_INVALID_HANDLE);
    OK(gpu->cuStreamDestroy(second));
}

TEST_F(FakeControls, CountsCopiesByKind) {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB);
    std::vector<unsigned char> pageable(1000);
    const CUstream s = stream();
    OK(gpu->cuMemcpyHtoDAsync(memory, host, kMiB, s));
    OK(gpu->cuMemcpyDtoHAsync(host, memory, 4096, s));
    EXPECT_EQ(fake_->counters().unpinned_async_copies, 0U);
    EXPECT_EQ(fake_->counters().synchronizations, 0U);
    OK(gpu->cuMemcpyHtoDAsync(memory, pageable.data(), 1000, s));
    OK(gpu->cuStreamSynchronize(s));
    const FakeGpuCounters counted = fake_->counters();
    EXPECT_EQ(counted.unpinned_async_copies, 1U);
    EXPECT_EQ(counted.unpinned_async_bytes, 1000U);
    EXPECT_EQ(counted.synchronizations, 1U);
    EXPECT_EQ(counted.copies_in, 2U);
    EXPECT_EQ(counted.bytes_in, kMiB + 1000);
    EXPECT_EQ(counted.bytes_out, 4096U);
    EXPECT_GE(counted.pinned_bytes_max, kMiB);
}

TEST_F(FakeControls, CallsFailWhenToldAndDoNothing) {
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
        fake_->fail("cuStreamCreate", nth, CUDA_ERROR_OUT_OF_MEMORY);
        for (std::uint64_t i = 1; i <= 4; ++i) {
            const std::uint64_t before = fake_->counters().streams_now;
            CUstream made = nullptr;
            const CUresult result = gpu->cuStreamCreate(&made, 0);
            EXPECT_EQ(result, i == nth ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS) << nth << i;
            EXPECT_EQ(fake_->counters().streams_now, before + (i == nth ? 0 : 1));
            if (made != nullptr) {
                OK(gpu->cuStreamDestroy(made));
            }
        }
    }
}

TEST_F(FakeControls, AnyCallFailsAtAnyIndex) {
    fake_->fail("*", 2, CUDA_ERROR_UNKNOWN, 2);
    int count = 0;
    EXPECT_EQ(gpu->cuDeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_EQ(gpu->cuDeviceGetCount(&count), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(gpu->cuStreamQuery(nullptr), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(gpu->cuDeviceGetCount(&count), CUDA_SUCCESS);
}

TEST_F(FakeControls, AnErrorOfACopySticks) {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB, 0x11);
    const CUstream s = stream();
    const CUevent e = event();
    fake_->fail_copy(2, CUDA_ERROR_ECC_UNCORRECTABLE);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, 4096, s));
    OK(gpu->cuStreamSynchronize(s));
    ASSERT_EQ(gpu->cuMemcpyHtoDAsync(memory + 4096, host, 4096, s), CUDA_SUCCESS);
    const CUresult recorded = gpu->cuEventRecord(e, s);  // the copy may have failed by now
    EXPECT_THAT(recorded, testing::AnyOf(CUDA_SUCCESS, CUDA_ERROR_ECC_UNCORRECTABLE));
    while (gpu->cuEventQuery(e) == CUDA_ERROR_NOT_READY) {
    }
    CUdeviceptr more = 0;
    EXPECT_EQ(gpu->cuEventQuery(e), CUDA_ERROR_ECC_UNCORRECTABLE);
    EXPECT_EQ(gpu->cuMemAlloc(&more, 64), CUDA_ERROR_ECC_UNCORRECTABLE);
    EXPECT_EQ(gpu->cuStreamSynchronize(s), CUDA_ERROR_ECC_UNCORRECTABLE);
    unsigned char found = 0;
    ASSERT_TRUE(fake_->look(memory + 4096, &found, 1));
    EXPECT_EQ(found, 0xDB);  // not done
}

TEST_F(FakeControls, ARateIsKept) {
    const CUdeviceptr memory = device_memory(32 * kMiB);
    unsigned char* host = pinned(32 * kMiB);
    const CUstream s = stream();
    fake_->set_rate(200e6, 0);
    const double took = seconds([&] {
        for (std::size_t i = 0; i < 8; ++i) {
            OK(gpu->cuMemcpyHtoDAsync(memory + i * 4 * kMiB, host + i * 4 * kMiB, 4 * kMiB, s));
        }
    });
    EXPECT_GE(took, 32 * kMiB / 200e6 * 0.98);
}

TEST_F(FakeControls, StreamsShareAnEngineForEachDirection) {
    const CUdeviceptr memory = device_memory(32 * kMiB);
    unsigned char* host = pinned(32 * kMiB);
    const CUstream one = stream();
    const CUstream two = stream();
    fake_->set_rate(200e6, 200e6);
    const double alone = 16 * kMiB / 200e6;
    const double same = seconds([&] {
        OK(gpu->cuMemcpyHtoDAsync(memory, host, 16 * kMiB, one));
        OK(gpu->cuMemcpyHtoDAsync(memory + 16 * kMiB, host, 16 * kMiB, two));
    });
    EXPECT_GE(same, 2 * alone * 0.98);
    double both = 0;  // of three tries the best: the machine may be busy
    for (int i = 0; i < 3 && (i == 0 || both >= 1.8 * alone); ++i) {
        both = seconds([&] {
            OK(gpu->cuMemcpyHtoDAsync(memory, host, 16 * kMiB, one));
            OK(gpu->cuMemcpyDtoHAsync(host + 16 * kMiB, memory + 16 * kMiB, 16 * kMiB, two));
        });
    }
    EXPECT_LT(both, 1.8 * alone);
}

TEST_F(FakeControls, NothingBeginsWhileItIsHeld) {
    const CUdeviceptr memory = device_memory(4096);
    unsigned char* host = pinned(4096, 0x21);
    const CUstream s = stream();
    fake_->hold(true);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, 4096, s));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(gpu->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    fake_->hold(false);
    OK(gpu->cuStreamSynchronize(s));
    unsigned char found = 0;
    ASSERT_TRUE(fake_->look(memory, &found, 1));
    EXPECT_EQ(found, 0x21);
}

TEST_F(FakeControls, StreamsTakeTurnsAtRandom) {
    const CUdeviceptr memory = device_memory(64);
    unsigned char* host = pinned(64);
    std::array<CUstream, 6> streams{};
    std::generate(streams.begin(), streams.end(), [&] { return stream(); });
    std::vector<unsigned char> last;  // which stream's copy came last
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        fake_->set_delays(seed, 0);
        fake_->hold(true);
        for (unsigned char i = 0; i < 6; ++i) {
            host[i] = i;
            OK(gpu->cuMemcpyHtoDAsync(memory, host + i, 1, streams[i]));
        }
        fake_->hold(false);
        OK(gpu->cuCtxSynchronize());
        last.push_back(bytes_of(memory, 1)[0]);
    }
    std::sort(last.begin(), last.end());
    EXPECT_GE(std::unique(last.begin(), last.end()) - last.begin(), 4);
}

}  // namespace
}  // namespace penstock::device::cuda::conformance
