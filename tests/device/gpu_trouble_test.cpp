// SPDX-License-Identifier: Apache-2.0
// A program and its GPU trouble transfers: memory that is freed under it, contexts that are
// reset, streams that are destroyed, each call of the driver failing in turn, errors that stay,
// forks and ends at bad moments, many threads with several engines. Each has one outcome: the right
// bytes or an error with the driver's words, and the engine goes on with the host's memory.
#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::device {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::uint64_t kBytes = 1'200'000;
constexpr auto kPatience = 20s;

void* at(cuda::CUdeviceptr address) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// The error that the transfer ended with; it may not take long.
std::optional<Error> end_of(Transfer& transfer) {
    try {
        EXPECT_TRUE(transfer.wait_for(kPatience)) << "it hangs";
        return std::nullopt;
    } catch (const Error& error) {
        return error;
    }
}

class GpuTroubles : public OnFakeGpu {
protected:
    void SetUp() override {
        OnFakeGpu::SetUp();
        std::mt19937_64 random(5);
        for (std::size_t i = 0; i < kBytes; i += sizeof(std::uint64_t)) {
            const std::uint64_t bits = random();
            std::memcpy(content_.data() + i, &bits, sizeof(bits));
        }
        Engine().write(path_, ConstMemory(content_));
    }
    [[nodiscard]] Memory gpu_memory(std::uint64_t bytes = kBytes, std::int32_t gpu = 0) {
        return device_memory(at(device_bytes(bytes, gpu)), bytes);
    }
    [[nodiscard]] bool holds(const Memory& memory) {
        return look(reinterpret_cast<std::uintptr_t>(memory.data), memory.bytes) == content_;
    }
    /// The engine moves the host's memory.
    void expect_host_goes_on(Engine& engine) {
        std::vector<std::byte> host(kBytes);
        engine.read(path_, Memory(host));
        EXPECT_EQ(host, content_);
    }

    support::TempFolder folder_;
    std::string path_ = folder_ / "file";
    std::vector<std::byte> content_ = std::vector<std::byte>(kBytes);
};

// From the making of an engine to its end, with a stream to begin after, in both directions.
TEST_F(GpuTroubles, EveryCallOfTheDriverFailsOnce) {
    const Memory memory = gpu_memory();
    const std::string out = folder_ / "out";
    std::uint64_t nth = 1;
    int errors = 0;
    for (bool met = true; met; nth += nth < 60 ? 1 : 7) {
        ASSERT_LT(nth, 3000U);
        const int code = std::array{2, 214, 719}[nth % 3];  // no memory, ECC, a failed launch
        SCOPED_TRACE("call " + std::to_string(nth) + ", error " + std::to_string(code));
        BusyStream busy(*driver_);
        Engine engine;
        const std::uint64_t failed = fake_->counters().failed_by_order;
        fake_->fail("*", nth, code);
        for (const bool write : {false, true}) {
            std::optional<Error> error;
            std::optional<Transfer> transfer;
            try {
                transfer = write ? engine.write_async(out, ConstMemory(memory), 0, busy.after())
                                 : engine.read_async(path_, memory, 0, busy.after());
            } catch (const Error& refused) {
                error = refused;
            }
            busy.end();
            error = transfer ? end_of(*transfer) : error;
            if (error) {
                ++errors;
                EXPECT_THAT(error->what(), HasSubstr("CUDA_ERROR"));
                continue;
            }
            if (write) {
                std::vector<std::byte> back(kBytes);
                engine.read(out, Memory(back));
                EXPECT_TRUE(back == look(reinterpret_cast<std::uintptr_t>(memory.data), kBytes));
            } else {
                EXPECT_TRUE(holds(memory));
            }
        }
        met = fake_->counters().failed_by_order != failed;
        fake_->fail("*", 0, 0);
        engine.read(path_, memory);
        ASSERT_TRUE(holds(memory));
        ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(errors, 10);
    EXPECT_EQ(fake_->counters().missing_contexts, 0U);
}

// An error that stays may come from a copy of ours or of others: all that follows fails, too, but
// what is of the host.
TEST_F(GpuTroubles, ErrorsThatStayEndWhatIsUnderWay) {
    const Memory memory = gpu_memory();
    for (const std::uint64_t nth : {1U, 3U}) {
        Engine engine;
        engine.read(path_, memory);
        fake_->fail_copy(nth, cuda::CUDA_ERROR_ECC_UNCORRECTABLE);
        std::vector<Transfer> all;
        int errors = 0;
        const auto count = [&](const Error& error) {
            ++errors;
            EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
        };
        for (int i = 0; i < 4; ++i) {
            try {
                all.push_back(engine.read_async(path_, memory));
            } catch (const Error& error) {  // an earlier one met it already
                count(error);
            }
        }
        for (Transfer& transfer : all) {
            if (const auto error = end_of(transfer)) {
                count(*error);
            }
        }
        EXPECT_GT(errors, 0);
        EXPECT_THROW(engine.read(path_, memory), Error);
        expect_host_goes_on(engine);
        fake_->calm();
    }
}

TEST_F(GpuTroubles, MemoryThatIsFreedUnderATransferIsAnErrorOfIt) {
    Engine engine;
    for (const bool write : {false, true}) {
        cuda::CUdeviceptr memory = 0;
        const Current current(*driver_, primary_context(*driver_, 0).value());
        ASSERT_EQ(driver_->cuMemAlloc(&memory, kBytes), cuda::CUDA_SUCCESS);
        const Memory there = device_memory(at(memory), kBytes);
        fake_->stop_at(write ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync");
        Transfer transfer = write ? engine.write_async(folder_ / "out", ConstMemory(there))
                                  : engine.read_async(path_, there);
        ASSERT_EQ(driver_->cuMemFree(memory), cuda::CUDA_SUCCESS);
        fake_->stop_at(nullptr);
        const auto error = end_of(transfer);
        ASSERT_TRUE(error) << "bytes went to memory that is gone";
        EXPECT_THAT(error->what(), HasSubstr("CUDA_ERROR_INVALID_VALUE"));
        expect_host_goes_on(engine);
    }
}

TEST_F(GpuTroubles, AStreamMayBeDestroyedAfterTheCall) {
    Engine engine;
    const Memory memory = gpu_memory();
    BusyStream busy(*driver_);
    Transfer transfer = engine.read_async(path_, memory, 0, busy.after());
    busy.destroy();
    EXPECT_FALSE(transfer.wait_for(5ms)) << "its work is not done";
    busy.end();
    EXPECT_FALSE(end_of(transfer));
    EXPECT_TRUE(holds(memory));
}

// cudaDeviceReset() takes memory, streams and events. What is under way ends; a new engine works.
TEST_F(GpuTroubles, AResetOfTheContextEndsTransfersAndANewEngineWorks) {
    auto* const reset = other_call<cuda::CUresult(cuda::CUdevice)>("cuDevicePrimaryCtxReset_v2");
    ASSERT_NE(reset, nullptr);
    auto engine = std::make_unique<Engine>();
    const Memory memory = gpu_memory();
    engine->read(path_, memory);
    fake_->set_rate(50e6, 50e6);
    Transfer transfer = engine->read_async(path_, memory);
    std::this_thread::sleep_for(5ms);
    ASSERT_EQ(reset(0), cuda::CUDA_SUCCESS);
    memory_.clear();  // went with it
    const auto error = end_of(transfer);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("CUDA_ERROR"));
    fake_->calm();
    expect_host_goes_on(*engine);
    const Memory later = gpu_memory();
    try {
        engine->read(path_, later);
        EXPECT_TRUE(holds(later));
    } catch (const Error& again) {
        EXPECT_THAT(again.what(), HasSubstr("make the engine again"));
    }
    engine = std::make_unique<Engine>();
    engine->read(path_, later);
    EXPECT_TRUE(holds(later));
}

TEST_F(GpuTroubles, EmptyExtentsOfAnyPlaceAreNothing) {
    Engine engine;
    const Memory memory = gpu_memory();
    TransferRequest request;
    request.paths = {path_};
    for (std::uint64_t begin = 0; begin < kBytes; begin += 300'000) {
        request.extents.push_back({begin, Memory(nullptr, 0, MemoryKind::kDevice, 7), 0});
        request.extents.push_back(
            {begin, Memory(memory.data + begin, 300'000, MemoryKind::kDevice, 0), 0});
        request.extents.push_back({begin, Memory(nullptr, 0), 0});
    }
    engine.submit(std::move(request)).wait();
    EXPECT_TRUE(holds(memory));
    engine.read(path_, Memory(nullptr, 0, MemoryKind::kDevice, 7));
}

// Memory that both sides may touch is moved as a GPU's; memory of the host that CUDA has is moved
// as the host's.
TEST_F(GpuTroubles, ManagedAndRegisteredMemoryAreMoved) {
    Engine engine;
    const Current current(*driver_, primary_context(*driver_, 0).value());
    cuda::CUdeviceptr managed = 0;
    using Manage = cuda::CUresult(cuda::CUdeviceptr*, std::size_t, unsigned int);
    ASSERT_EQ(other_call<Manage>("cuMemAllocManaged")(&managed, kBytes, 1), cuda::CUDA_SUCCESS);
    const Memory both = device_memory(at(managed), kBytes);
    EXPECT_EQ(both.kind, MemoryKind::kDevice);
    engine.read(path_, both);
    EXPECT_TRUE(holds(both));
    EXPECT_EQ(driver_->cuMemFree(managed), cuda::CUDA_SUCCESS);

    std::vector<std::byte> host(kBytes);
    ASSERT_EQ(driver_->cuMemHostRegister(host.data(), kBytes, 0), cuda::CUDA_SUCCESS);
    const Memory registered = device_memory(host.data(), kBytes);
    EXPECT_EQ(registered.kind, MemoryKind::kHost);
    engine.read(path_, registered);
    EXPECT_EQ(host, content_);
    EXPECT_THROW(engine.read(path_, Memory(host.data(), kBytes, MemoryKind::kDevice, 0)), Error);
    EXPECT_EQ(driver_->cuMemHostUnregister(host.data()), cuda::CUDA_SUCCESS);
}

// A child sees the end of what its parent has under way, and does not wait for the GPU.
void fork_and_check(Transfer& transfer, const std::function<bool()>& host_goes_on) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        bool cancelled = false;
        try {
            transfer.wait();
        } catch (const Error& error) {
            cancelled = error.reason() == ErrorCode::kCancelled;
        }
        ::_exit(cancelled && host_goes_on() ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST_F(GpuTroubles, AForkMayComeWhileAStreamOrAContextIsWaitedFor) {
    Engine engine;
    const Memory memory = gpu_memory();
    const auto host_goes_on = [&] {
        std::vector<std::byte> host(kBytes);
        return engine.read(path_, Memory(host)) == kBytes && host == content_;
    };
    fake_->stop_at("cuStreamCreate");  // of the first transfer: the GPU is being begun
    Transfer begun = engine.read_async(path_, memory);
    std::this_thread::sleep_for(5ms);
    fork_and_check(begun, host_goes_on);
    fake_->stop_at(nullptr);
    EXPECT_FALSE(end_of(begun));
    EXPECT_TRUE(holds(memory));

    BusyStream busy(*driver_);
    Transfer held = engine.read_async(path_, memory, 0, busy.after());
    fork_and_check(held, host_goes_on);
    EXPECT_FALSE(held.done());
    busy.end();
    EXPECT_FALSE(end_of(held));
    EXPECT_TRUE(holds(memory));
}

// A process ends while a stream is busy, with an engine that nobody closed.
TEST(GpuTroubleAlone, DISABLED_EndsBehindABusyStream) {
    ASSERT_TRUE(gpus().available);
    const Driver& driver = **device::driver();
    static const support::TempFolder folder;
    static Engine engine;
    static BusyStream busy(driver);
    cuda::CUdeviceptr memory = 0;
    {
        const Current current(driver, primary_context(driver, 0).value());
        ASSERT_EQ(driver.cuMemAlloc(&memory, kBytes), cuda::CUDA_SUCCESS);
    }
    const std::vector<std::byte> content(kBytes, std::byte{3});
    engine.write(folder / "file", ConstMemory(content));
    const Memory there = device_memory(at(memory), kBytes);
    static const Transfer held = engine.read_async(folder / "file", there, 0, busy.after());
    std::thread([] {
        std::this_thread::sleep_for(50ms);
        busy.end();
    }).detach();
}

TEST_F(GpuTroubles, AProcessMayEndBehindABusyStream) {
    EXPECT_TRUE(runs_alone("GpuTroubleAlone.DISABLED_EndsBehindABusyStream", {}));
}

// Threads read, write, cancel and drop on two engines and two GPUs, while copies are late and
// streams are busy now and then. Each has a file and memory of its own, which are right at its end.
using GpuTroublesAlone = GpuTroubles;
TEST_F(GpuTroublesAlone, DISABLED_ManyThreads) {
    ASSERT_EQ(gpus().gpus.size(), 2U);
    fake_->set_delays(11, 150);
    std::vector<std::unique_ptr<Engine>> engines;
    engines.push_back(std::make_unique<Engine>());
    engines.push_back(std::make_unique<Engine>());
    std::vector<std::vector<Memory>> memories;
    for (int thread = 0; thread < 6; ++thread) {
        memories.push_back({gpu_memory(kBytes, 0), gpu_memory(kBytes, 1)});
    }
    std::vector<std::thread> threads;
    for (unsigned int thread = 0; thread < 6; ++thread) {
        threads.emplace_back([&, thread] {
            std::mt19937 random(thread);
            const std::string mine = folder_ / std::to_string(thread);
            for (int round = 0; round < 12; ++round) {
                Engine& engine = *engines[random() % 2];
                const Memory memory = memories[thread][random() % 2];
                std::optional<BusyStream> busy;
                if (random() % 4 == 0) {
                    busy.emplace(*driver_);
                }
                const TransferOptions options = busy ? busy->after() : TransferOptions();
                std::optional<Transfer> transfer = engine.read_async(path_, memory, 0, options);
                if (busy) {
                    busy->end();
                }
                if (random() % 3 == 0) {
                    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
                    transfer->cancel();
                }
                const auto error = end_of(*transfer);
                if (error) {
                    EXPECT_EQ(error->reason(), ErrorCode::kCancelled) << error->what();
                    continue;
                }
                EXPECT_TRUE(holds(memory));
                engine.write(mine, ConstMemory(memory), 0, {.sync = random() % 4 == 0});
                std::vector<std::byte> back(kBytes);
                engine.read(mine, Memory(back));
                EXPECT_EQ(back, content_);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    engines.clear();
    const FakeGpuCounters counted = fake_->counters();
    EXPECT_EQ(counted.missing_contexts, 0U);
    EXPECT_EQ(counted.synchronizations, 0U);
    EXPECT_EQ(counted.unpinned_async_copies, 0U);
    EXPECT_EQ(counted.pinned_bytes_now, 0U);
    EXPECT_EQ(counted.streams_now, 0U);
    EXPECT_EQ(counted.events_now, 0U);
}

TEST_F(GpuTroubles, ManyThreadsOnTwoEnginesAndTwoGpus) {
    EXPECT_TRUE(runs_alone("GpuTroublesAlone.DISABLED_ManyThreads", {"FAKE_GPU_DEVICES=2"}));
}

}  // namespace
}  // namespace penstock::device
