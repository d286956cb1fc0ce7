// SPDX-License-Identifier: Apache-2.0
// The kernel that puts rows together, launched on the fake: which bytes, in which order, and what
// is left of a launch that was refused.
#include "device/launch.hpp"

#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "memory/block.hpp"

#include <gmock/gmock.h>

#include <random>

namespace penstock::device {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kRoom = 1 << 18;

class Launches : public OnFakeGpu {
protected:
    void SetUp() override {
        OnFakeGpu::SetUp();
        ASSERT_EQ(driver_->cuCtxPushCurrent(primary_context(*driver_, 0).value()),
                  cuda::CUDA_SUCCESS);
        ASSERT_TRUE(kernel(*driver_, 0, "copy_rows", "penstock_copy_rows").has_value());
    }
    void TearDown() override {
        fake_->calm();
        cuda::CUcontext popped = nullptr;
        driver_->cuCtxPopCurrent(&popped);
        OnFakeGpu::TearDown();
    }
};

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::uint64_t bytes) {
    std::vector<std::byte> made(bytes);
    for (std::byte& one : made) {
        one = static_cast<std::byte>(random());
    }
    return made;
}

// Any length and alignment, from the GPU and from pinned memory: the rows, and no byte besides.
TEST_F(Launches, PutsRowsWhereTheyBelong) {
    std::mt19937_64 random(7);
    memory::Block block = memory::Block::make(kRoom).value();
    const std::vector<std::byte> host = random_bytes(random, kRoom);
    std::copy(host.begin(), host.end(), block.data());
    auto pinned = PinnedRange::make(0, block.data(), block.size());
    ASSERT_TRUE(pinned.has_value()) << pinned.error().describe();
    const std::vector<std::byte> kept = random_bytes(random, kRoom);
    const cuda::CUdeviceptr on_gpu = device_bytes(kRoom);
    put(on_gpu, kept);
    const cuda::CUdeviceptr out = device_bytes(kRoom);
    for (const std::uint64_t row_bytes : {1, 2, 6, 16, 64, 100, 512, 2049, 4096, 16384, 40000}) {
        const std::uint64_t count = std::min<std::uint64_t>(kRoom / row_bytes / 2, 700);
        const std::uint64_t shift = row_bytes % 3;  // of where the first row goes
        std::vector<std::byte> expected(kRoom, std::byte{0xEE});
        put(out, expected);
        auto launch = RowLaunch::make(0, RowLaunch::entries(count, row_bytes));
        ASSERT_TRUE(launch.has_value()) << launch.error().describe();
        for (std::uint64_t i = 0; i < count; ++i) {
            const bool from_host = random() % 2 == 0;
            const std::uint64_t from = random() % (kRoom / row_bytes) * row_bytes;
            (*launch)->add((from_host ? pinned->address() : on_gpu) + from,
                           out + shift + i * row_bytes, row_bytes);
            const std::vector<std::byte>& source = from_host ? host : kept;
            std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), row_bytes,
                        expected.begin() + static_cast<std::ptrdiff_t>(shift + i * row_bytes));
        }
        ASSERT_TRUE((*launch)->start({0, 0}).has_value());
        ASSERT_EQ((*launch)->wait(std::chrono::seconds(20)), RowLaunch::State::kDone);
        ASSERT_TRUE(look(out, kRoom) == expected) << row_bytes;
    }
}

TEST_F(Launches, ComesAfterWhatItsStreamHolds) {
    cuda::CUstream stream = nullptr;
    ASSERT_EQ(driver_->cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
    memory::Block block = memory::Block::make(4096).value();
    std::fill_n(block.data(), 4096, std::byte{9});
    auto pinned = PinnedRange::make(0, block.data(), 4096);
    ASSERT_TRUE(pinned.has_value());
    const cuda::CUdeviceptr from = device_bytes(4096);
    const cuda::CUdeviceptr to = device_bytes(4096);
    fake_->hold(true);
    ASSERT_EQ(driver_->cuMemcpyHtoDAsync(from, block.data(), 4096, stream), cuda::CUDA_SUCCESS);
    auto launch = RowLaunch::make(0, 1);
    ASSERT_TRUE(launch.has_value());
    (*launch)->add(from, to, 4096);
    ASSERT_TRUE((*launch)->start({reinterpret_cast<std::uintptr_t>(stream), 0}).has_value());
    EXPECT_EQ((*launch)->wait(std::chrono::milliseconds(5)), RowLaunch::State::kRunning);
    fake_->hold(false);
    EXPECT_EQ((*launch)->wait(std::chrono::seconds(20)), RowLaunch::State::kDone);
    EXPECT_EQ(look(to, 4096), std::vector<std::byte>(4096, std::byte{9}));
    launch->reset();
    driver_->cuStreamDestroy(stream);
}

// Each call that a launch makes, refused once: an error, nothing that stays, and the next works.
TEST_F(Launches, WhatIsRefusedLeavesNothing) {
    const cuda::CUdeviceptr memory = device_bytes(4096);
    const auto before = fake_->counters();
    for (const char* call :
         {"cuCtxPushCurrent", "cuMemHostAlloc", "cuEventCreate", "cuMemHostGetDevicePointer",
          "cuLaunchKernel", "cuEventRecord", "cuStreamIsCapturing"}) {
        const auto try_it = [&]() -> base::Result<void> {
            PENSTOCK_TRY(launch, RowLaunch::make(0, 1));
            launch->add(memory, memory + 2048, 1024);
            PENSTOCK_CHECK(launch->start({0, 0}));
            return launch->wait(std::chrono::seconds(20)) == RowLaunch::State::kDone
                       ? base::Result<void>()
                       : base::fail(launch->error());
        };
        fake_->fail(call, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        const auto tried = try_it();
        ASSERT_FALSE(tried.has_value()) << call;
        EXPECT_EQ(tried.error().code, ErrorCode::kOutOfMemory) << tried.error().describe();
        EXPECT_THAT(tried.error().describe(), HasSubstr(call));
        fake_->calm();
        EXPECT_TRUE(try_it().has_value()) << call;
    }
    EXPECT_EQ(fake_->counters().events_now, before.events_now);
    fake_->fail("cuMemHostRegister", 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
    memory::Block block = memory::Block::make(4096).value();
    const auto pinned = PinnedRange::make(0, block.data(), 4096);
    ASSERT_FALSE(pinned.has_value());
    EXPECT_THAT(pinned.error().describe(), HasSubstr("locked memory"));
    fake_->fail("cuMemHostGetDevicePointer", 1, cuda::CUDA_ERROR_INVALID_VALUE);
    ASSERT_FALSE(PinnedRange::make(0, block.data(), 4096).has_value());
    EXPECT_EQ(driver_->cuMemHostUnregister(block.data()),
              cuda::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    fake_->fail("cuMemAlloc", 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(DeviceBlock::make(0, 4096).error().code, ErrorCode::kOutOfMemory);
}

// Another library unmapped pieces that it had registered, and the same addresses are ours now.
TEST_F(Launches, PinsAddressesThatWereLeftRegistered) {
    constexpr std::size_t kPiece = 64 << 10;
    memory::Block block = memory::Block::make(4 * kPiece).value();
    for (const std::size_t at : {kPiece, 2 * kPiece}) {
        ASSERT_EQ(driver_->cuMemHostRegister(block.data() + at, kPiece, 0), cuda::CUDA_SUCCESS);
    }
    const auto pinned = PinnedRange::make(0, block.data(), 4 * kPiece);
    EXPECT_TRUE(pinned.has_value()) << pinned.error().describe();
}

TEST_F(Launches, LeavesNothingRegisteredWhenACallIsRefused) {
    memory::Block block = memory::Block::make(4096).value();
    for (const char* call : {"cuMemHostUnregister", "cuCtxPushCurrent"}) {
        auto pinned = PinnedRange::make(0, block.data(), 4096);
        ASSERT_TRUE(pinned.has_value()) << pinned.error().describe();
        fake_->fail(call, 1, cuda::CUDA_ERROR_INVALID_VALUE, 1);
        *pinned = PinnedRange();
        fake_->calm();
        EXPECT_EQ(driver_->cuMemHostUnregister(block.data()),
                  cuda::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
}

TEST_F(Launches, StreamsThatCannotHaveItAreNamed) {
    const cuda::CUdeviceptr memory = device_bytes(64);
    auto launch = RowLaunch::make(0, 1);
    ASSERT_TRUE(launch.has_value());
    (*launch)->add(memory, memory + 32, 16);
    const auto none = (*launch)->start({0x1234'5670, 0});
    ASSERT_FALSE(none.has_value());
    EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument) << none.error().describe();
    EXPECT_THAT(none.error().describe(), HasSubstr("0x12345670"));
}

TEST_F(Launches, DISABLED_AnAddressThatIsNoneIsAnErrorOfTheGpu) {
    auto launch = RowLaunch::make(0, 1);
    ASSERT_TRUE(launch.has_value());
    (*launch)->add(0x1000, device_bytes(64), 16);
    const auto started = (*launch)->start({0, 0});
    if (started.has_value()) {
        EXPECT_EQ((*launch)->wait(std::chrono::seconds(20)), RowLaunch::State::kFailed);
        EXPECT_THAT((*launch)->error().describe(), HasSubstr("700"));
    } else {  // the kernel ran before the calls after its launch
        EXPECT_THAT(started.error().describe(), HasSubstr("700"));
    }
}

TEST_F(Launches, DISABLED_AnOldDriverTakesThePtx) {
    EXPECT_EQ(driver_->version, 12000);
}

TEST(LaunchesAlone, Run) {
    EXPECT_TRUE(runs_alone("Launches.DISABLED_AnAddressThatIsNoneIsAnErrorOfTheGpu", {}));
    // SetUp() loads the kernel.
    EXPECT_TRUE(
        runs_alone("Launches.DISABLED_AnOldDriverTakesThePtx", {"FAKE_GPU_DRIVER_VERSION=12000"}));
}

}  // namespace
}  // namespace penstock::device
