// SPDX-License-Identifier: Apache-2.0
// Transfer::join(): a stream of the caller's comes after copies that are queued, while the host
// goes on. The fake holds all copies, so what returns meanwhile waits for none.
#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "memory/block.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::device {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kTransferBytes = 3'000'001;

class StreamJoins : public OnFakeGpu {
protected:
    void SetUp() override {
        OnFakeGpu::SetUp();
        ASSERT_EQ(driver_->cuCtxPushCurrent(primary_context(*driver_, 0).value()),
                  cuda::CUDA_SUCCESS);
        ASSERT_EQ(driver_->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING),
                  cuda::CUDA_SUCCESS);
        host_ = memory::Block::make(kTransferBytes).value();
        ASSERT_EQ(driver_->cuMemHostRegister(host_.data(), host_.size(), 0), cuda::CUDA_SUCCESS);
        old_ = random_bytes();
        new_ = random_bytes();
        engine_.write(path_, ConstMemory(old_));
        memory_of_ = gpu_memory();
    }
    void TearDown() override {
        fake_->calm();
        engine_.drain();
        finish();
        driver_->cuStreamDestroy(stream_);
        driver_->cuMemHostUnregister(host_.data());
        cuda::CUcontext popped = nullptr;
        driver_->cuCtxPopCurrent(&popped);
        OnFakeGpu::TearDown();
    }
    [[nodiscard]] Bytes random_bytes() {
        Bytes made(kTransferBytes);
        for (std::byte& byte : made) {
            byte = static_cast<std::byte>(random_());
        }
        return made;
    }
    [[nodiscard]] Memory gpu_memory(std::int32_t gpu = 0) {
        return device_memory(
            reinterpret_cast<void*>(static_cast<std::uintptr_t>(device_bytes(kTransferBytes, gpu))),
            kTransferBytes);
    }
    [[nodiscard]] static cuda::CUdeviceptr address(const Memory& memory) {
        return reinterpret_cast<std::uintptr_t>(memory.data);
    }
    [[nodiscard]] StreamHandle mine() const {
        return {reinterpret_cast<std::uintptr_t>(stream_), 0};
    }
    [[nodiscard]] Bytes copied() const { return {host_.data(), host_.data() + kTransferBytes}; }
    /// Puts a copy of device memory to host_ on a stream.
    void copy_out(const Memory& from, cuda::CUstream stream) {
        ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host_.data(), address(from), kTransferBytes, stream),
                  cuda::CUDA_SUCCESS);
    }
    void finish(cuda::CUstream stream) {
        while (driver_->cuStreamQuery(stream) == cuda::CUDA_ERROR_NOT_READY) {
            std::this_thread::yield();
        }
    }
    void finish() { finish(stream_); }

    std::mt19937 random_{11};
    support::TempFolder folder_;
    const std::string path_ = folder_ / "file";
    Engine engine_;
    cuda::CUstream stream_ = nullptr;
    memory::Block host_;
    Bytes old_;
    Bytes new_;
    Memory memory_of_;
};

// Copies in are slow, and copies out have an engine of their own: without an order, the copy out
// would find what was there before.
TEST_F(StreamJoins, PutTheStreamBehindTheCopiesOfARead) {
    for (const std::uintptr_t stream : {mine().handle, std::uintptr_t{0}, std::uintptr_t{2}}) {
        put(address(memory_of_), new_);
        fake_->set_rate(100e6, 0);
        fake_->hold(true);
        Transfer transfer = engine_.read_async(path_, memory_of_);
        transfer.join({stream, stream > 2 ? 0 : -1});
        EXPECT_FALSE(transfer.done());
        auto* const handle = reinterpret_cast<cuda::CUstream>(stream);
        copy_out(memory_of_, handle);
        fake_->hold(false);
        finish(handle);
        EXPECT_TRUE(copied() == old_) << stream;
        EXPECT_EQ(transfer.wait(), kTransferBytes);
        fake_->calm();
    }
    EXPECT_EQ(fake_->counters().synchronizations, 0U);
    EXPECT_EQ(fake_->counters().missing_contexts, 0U);
}

// Not one byte has left the GPU when the host goes on, so it has waited for no disk.
TEST_F(StreamJoins, PutTheStreamBehindTheCopiesOfAWrite) {
    constexpr std::uint64_t kWhole = 2 << 20;  // a ragged end is written after the rest
    put(address(memory_of_), old_);
    std::copy(new_.begin(), new_.end(), host_.data());
    fake_->set_rate(0, 100e6);
    fake_->hold(true);
    const std::string path = folder_ / "written";
    Transfer transfer = engine_.write_async(
        path, ConstMemory(Memory(memory_of_.data, kWhole, MemoryKind::kDevice)));
    transfer.join(mine());
    EXPECT_FALSE(transfer.done());
    ASSERT_EQ(
        driver_->cuMemcpyHtoDAsync(address(memory_of_), host_.data(), kTransferBytes, stream_),
        cuda::CUDA_SUCCESS);
    fake_->hold(false);
    finish();
    EXPECT_EQ(transfer.wait(), kWhole);
    Bytes found(kWhole);
    engine_.read(path, Memory(found));
    EXPECT_TRUE(std::equal(found.begin(), found.end(), old_.begin()));
    EXPECT_EQ(look(address(memory_of_), kTransferBytes), new_);
}

// Extents in any order, over gaps, twice the same bytes, host memory between: each byte is counted
// once, or the host would wait for copies that are held.
TEST_F(StreamJoins, KnowWhenAllIsQueuedWhateverIsRead) {
    for (int round = 0; round < 30; ++round) {
        Bytes expected = new_;
        put(address(memory_of_), new_);
        Bytes host(100'000);
        Transfer transfer;
        {
            TransferRequest request;
            request.files.emplace_back(
                path_,
                FileOptions{.cache = round % 2 == 0 ? CachePolicy::kAuto : CachePolicy::kDirect});
            std::vector<Extent>& extents = request.extents;
            std::uint64_t at = random_() % 5000;
            for (std::uint64_t left = 1 + random_() % 40; left != 0; --left) {
                const std::uint64_t bytes = random_() % (round % 3 == 0 ? 300'000 : 3'000);
                if (at + bytes > kTransferBytes) {
                    break;
                }
                const std::uint64_t from =
                    round % 4 == 0 ? at : random_() % (kTransferBytes - bytes);
                extents.push_back({from, {memory_of_.data + at, bytes, MemoryKind::kDevice, 0}, 0});
                std::copy_n(old_.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                            expected.begin() + static_cast<std::ptrdiff_t>(at));
                at += bytes + random_() % 2 * 100;
            }
            if (round % 5 == 0) {
                extents.push_back({7, Memory(host), 0});
            }
            fake_->hold(true);
            transfer = engine_.submit(std::move(request));
            ASSERT_TRUE(transfer.join_for(mine(), 20s)) << round;
        }
        copy_out(memory_of_, stream_);
        fake_->hold(false);
        finish();
        EXPECT_TRUE(copied() == expected) << round;
        transfer.wait();
        if (round % 5 == 0) {
            EXPECT_TRUE(std::equal(host.begin(), host.end(), old_.begin() + 7));
        }
    }
}

TEST_F(StreamJoins, PutNothingOnAStreamWhileTheirTransferIsNotSoFar) {
    BusyStream busy(*driver_);
    Transfer transfer = engine_.read_async(path_, memory_of_, 0, busy.after());
    const std::uint64_t waits = fake_->calls("cuStreamWaitEvent");
    EXPECT_FALSE(transfer.join_for(mine(), 5ms));
    EXPECT_EQ(fake_->calls("cuStreamWaitEvent"), waits);
    EXPECT_EQ(driver_->cuStreamQuery(stream_), cuda::CUDA_SUCCESS);
    busy.end();
    transfer.join(mine());
    copy_out(memory_of_, stream_);
    finish();
    EXPECT_TRUE(copied() == old_);
    transfer.wait();
    const std::uint64_t all = fake_->calls("*");
    transfer.join({0, -1});  // it is over
    EXPECT_EQ(fake_->calls("*"), all);
}

// At any call of the driver's: an error of the stream, or the host waits for the copies.
TEST_F(StreamJoins, AreErrorsOrWholeWhicheverCallFails) {
    fake_->hold(true);
    Transfer transfer = engine_.read_async(path_, memory_of_);
    transfer.join(mine());
    const std::uint64_t events = fake_->counters().events_now;
    for (const char* call : {"cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"}) {
        fake_->fail(call, 1, cuda::CUDA_ERROR_UNKNOWN);
        EXPECT_FALSE(transfer.join_for(mine(), 5ms)) << call;
        EXPECT_TRUE(transfer.join_for(mine(), 5ms)) << call;
    }
    for (const auto& [call, error, words] :
         {std::tuple{"cuStreamGetCtx", 400, "was destroyed"},
          std::tuple{"cuStreamIsCapturing", 906, "before the capture or after it"},
          std::tuple{"cuStreamIsCapturing", 999, "CUDA_ERROR_UNKNOWN"}}) {
        fake_->fail(call, 1, error);
        try {
            transfer.join(mine());
            ADD_FAILURE() << "joined";
        } catch (const Error& refused) {
            EXPECT_THAT(refused.what(), HasSubstr(words));
        }
    }
    EXPECT_EQ(fake_->counters().events_now, events);
    EXPECT_FALSE(transfer.done());
    copy_out(memory_of_, stream_);
    fake_->hold(false);
    finish();
    EXPECT_TRUE(copied() == old_);
    EXPECT_EQ(transfer.wait(), kTransferBytes);
}

// A stream goes on whatever becomes of the transfer, and who waits for that hears it.
TEST_F(StreamJoins, OutliveTheirTransferAndItsEngine) {
    {
        Engine engine;
        fake_->set_rate(100e6, 100e6);
        Transfer transfer = engine.read_async(path_, memory_of_);
        transfer.join(mine());
        transfer.cancel();
        try {
            transfer.wait();  // it may be too late for a cancel
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kCancelled) << error.what();
        }
        transfer = engine.read_async(path_, memory_of_);
        transfer.join(mine());
        copy_out(memory_of_, stream_);
        transfer = {};
    }
    finish();
    EXPECT_TRUE(copied() == old_);
    Transfer failed = engine_.read_async(path_, memory_of_, 1);  // one byte past the end
    try {
        failed.join(mine());
        ADD_FAILURE() << "joined";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kEndOfFile) << error.what();
    }
    finish();
}

class StreamJoinsAlone : public StreamJoins {};

TEST_F(StreamJoinsAlone, DISABLED_OfTwoGpus) {
    const Memory other = gpu_memory(1);
    put(address(memory_of_), new_);
    put(address(other), new_);
    fake_->set_rate(200e6, 0);
    fake_->hold(true);
    TransferRequest request;
    request.paths = {path_};
    request.extents = {{0, memory_of_, 0}, {0, other, 0}};
    Transfer transfer = engine_.submit(std::move(request));
    transfer.join(mine());  // one stream after the copies of both
    transfer.join({0, -1});
    EXPECT_FALSE(transfer.done());
    copy_out(other, stream_);
    fake_->hold(false);
    finish();
    EXPECT_TRUE(copied() == old_);
    transfer.wait();
    EXPECT_TRUE(look(address(memory_of_), kTransferBytes) == old_);
}

TEST_F(StreamJoins, OfTwoGpus) {
    EXPECT_TRUE(runs_alone("StreamJoinsAlone.DISABLED_OfTwoGpus", {"FAKE_GPU_DEVICES=2"}));
}

}  // namespace
}  // namespace penstock::device
