// SPDX-License-Identifier: Apache-2.0
// The kernel that puts rows together, launched on the fake: which bytes, in which order, and what
// is left of a launch that was refused.
#include "device/cuda/context.hpp"
#include "device/cuda/kernel.hpp"
#include "device/fake_gpu.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>

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

template <typename Call>
Error refusal(Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error";
    return {ErrorCode::kSystem, 0, "", "", kNoOffset, ""};
}

// Any length and alignment, from the GPU and from pinned memory: the rows, and no byte besides.
TEST_F(Launches, PutsRowsWhereTheyBelong) {
    std::mt19937_64 random(7);
    const Region pinned = Region::pinned(kRoom, 0);
    const std::vector<std::byte> host = random_bytes(random, kRoom);
    std::copy(host.begin(), host.end(), pinned.data());
    const std::vector<std::byte> kept = random_bytes(random, kRoom);
    const cuda::CUdeviceptr on_gpu = device_bytes(kRoom);
    put(on_gpu, kept);
    const cuda::CUdeviceptr out = device_bytes(kRoom);
    for (const std::uint64_t row_bytes : {1, 2, 6, 16, 64, 100, 512, 2049, 4096, 16384, 40000}) {
        const std::uint64_t count = std::min<std::uint64_t>(kRoom / row_bytes / 2, 700);
        const std::uint64_t shift = row_bytes % 3;  // of where the first row goes
        std::vector<std::byte> expected(kRoom, std::byte{0xEE});
        put(out, expected);
        RowCopies launch(0, RowCopies::pieces(count, row_bytes));
        for (std::uint64_t i = 0; i < count; ++i) {
            const bool from_host = random() % 2 == 0;
            const std::uint64_t from = random() % (kRoom / row_bytes) * row_bytes;
            launch.add((from_host ? pinned.gpu_address() : on_gpu) + from,
                       out + shift + i * row_bytes, row_bytes);
            const std::vector<std::byte>& source = from_host ? host : kept;
            std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), row_bytes,
                        expected.begin() + static_cast<std::ptrdiff_t>(shift + i * row_bytes));
        }
        EXPECT_EQ(launch.size(), launch.room());
        launch.start({0, 0});
        ASSERT_EQ(launch.wait(std::chrono::seconds(20)), RowCopies::State::kDone);
        ASSERT_TRUE(look(out, kRoom) == expected) << row_bytes;
    }
}

TEST_F(Launches, ComesAfterWhatItsStreamHolds) {
    cuda::CUstream stream = nullptr;
    ASSERT_EQ(driver_->cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
    const Region pinned = Region::pinned(4096, 0);
    std::fill_n(pinned.data(), 4096, std::byte{9});
    const cuda::CUdeviceptr from = device_bytes(4096);
    const cuda::CUdeviceptr to = device_bytes(4096);
    fake_->hold(true);
    ASSERT_EQ(driver_->cuMemcpyHtoDAsync(from, pinned.data(), 4096, stream), cuda::CUDA_SUCCESS);
    RowCopies launch(0, 1);
    launch.add(from, to, 4096);
    launch.start({reinterpret_cast<std::uintptr_t>(stream), 0});
    EXPECT_EQ(launch.wait(std::chrono::milliseconds(5)), RowCopies::State::kRunning);
    EXPECT_EQ(launch.error(), nullptr);
    EXPECT_EQ(refusal([&] { launch.reset(); }).reason(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refusal([&] { launch.add(from, to, 1); }).reason(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refusal([&] { launch.start({0, 0}); }).reason(), ErrorCode::kInvalidArgument);
    fake_->hold(false);
    EXPECT_EQ(launch.wait(std::chrono::seconds(20)), RowCopies::State::kDone);
    EXPECT_EQ(look(to, 4096), std::vector<std::byte>(4096, std::byte{9}));
    launch.reset();
    EXPECT_EQ(launch.size(), 0U);
    driver_->cuStreamDestroy(stream);
}

TEST_F(Launches, NoMoreRowsThanThereIsRoomFor) {
    const cuda::CUdeviceptr memory = device_bytes(4096);
    RowCopies launch(0, 2);
    launch.add(memory, memory + 2048, 16);
    EXPECT_THAT(refusal([&] { launch.add(memory, memory + 64, UINT64_MAX); }).what(),
                HasSubstr("no room"));
    launch.add(memory, memory + 2048, 0);  // no piece
    launch.add(memory, memory + 2048, 16);
    EXPECT_THAT(refusal([&] { launch.add(memory, memory + 64, 1); }).what(), HasSubstr("no room"));
    EXPECT_EQ(launch.size(), 2U);
    EXPECT_EQ(RowCopies::pieces(UINT64_MAX, UINT64_MAX), UINT64_MAX);
    EXPECT_EQ(refusal([] { const RowCopies all(0, UINT64_MAX); }).reason(),
              ErrorCode::kOutOfMemory);
    RowCopies none(0, 0);  // no row at all is done at once
    none.start({0, 0});
    EXPECT_EQ(none.state(), RowCopies::State::kDone);
}

// Each call that a launch makes, refused once: an error, nothing that stays, and the next works.
TEST_F(Launches, WhatIsRefusedLeavesNothing) {
    const cuda::CUdeviceptr memory = device_bytes(4096);
    const auto before = fake_->counters();
    for (const char* call :
         {"cuCtxPushCurrent", "cuMemHostRegister", "cuMemHostGetDevicePointer", "cuEventCreate",
          "cuLaunchKernel", "cuEventRecord", "cuStreamIsCapturing"}) {
        const auto try_it = [&] {
            RowCopies launch(0, 1);
            launch.add(memory, memory + 2048, 1024);
            launch.start({0, 0});
            EXPECT_EQ(launch.wait(std::chrono::seconds(20)), RowCopies::State::kDone);
        };
        fake_->fail(call, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        const Error tried = refusal(try_it);
        EXPECT_EQ(tried.reason(), ErrorCode::kOutOfMemory) << tried.what();
        EXPECT_THAT(tried.what(), HasSubstr(call));
        fake_->calm();
        EXPECT_NO_THROW(try_it()) << call;
    }
    EXPECT_EQ(fake_->counters().events_now, before.events_now);
    EXPECT_EQ(fake_->counters().pinned_bytes_now, before.pinned_bytes_now);
}

TEST_F(Launches, StreamsThatCannotHaveItAreNamed) {
    const cuda::CUdeviceptr memory = device_bytes(64);
    RowCopies launch(0, 1);
    launch.add(memory, memory + 32, 16);
    const Error none = refusal([&] { launch.start({0x1234'5670, 0}); });
    EXPECT_EQ(none.reason(), ErrorCode::kInvalidArgument) << none.what();
    EXPECT_THAT(none.what(), HasSubstr("0x12345670"));
    launch.start({0, 0});  // another stream may have it
    EXPECT_EQ(launch.wait(std::chrono::seconds(20)), RowCopies::State::kDone);
}

TEST_F(Launches, DISABLED_AnAddressThatIsNoneIsAnErrorOfTheGpu) {
    RowCopies launch(0, 1);
    launch.add(0x1000, device_bytes(64), 16);
    try {
        launch.start({0, 0});
    } catch (const Error& error) {  // the kernel ran before the calls after its launch
        EXPECT_THAT(error.what(), HasSubstr("700"));
        return;
    }
    EXPECT_EQ(launch.wait(std::chrono::seconds(20)), RowCopies::State::kFailed);
    EXPECT_THAT(refusal([&] { std::rethrow_exception(launch.error()); }).what(), HasSubstr("700"));
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
