// SPDX-License-Identifier: Apache-2.0
// Files to and from GPU memory through the public API, on the fake driver.
#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::device {
namespace {

using ::testing::HasSubstr;

class GpuTransfers : public OnFakeGpu {
protected:
    [[nodiscard]] Memory gpu_memory(std::uint64_t bytes) {
        return device_memory(
            reinterpret_cast<void*>(static_cast<std::uintptr_t>(device_bytes(bytes))), bytes);
    }
    [[nodiscard]] std::vector<std::byte> look(const Memory& memory) {
        return OnFakeGpu::look(reinterpret_cast<std::uintptr_t>(memory.data), memory.bytes);
    }
    [[nodiscard]] std::vector<std::byte> file_of(const std::string& path, std::uint64_t bytes) {
        std::vector<std::byte> made(bytes);
        for (std::byte& byte : made) {
            byte = static_cast<std::byte>(random_());
        }
        engine_.write(path, ConstMemory(made));
        return made;
    }

    std::mt19937 random_{3};
    support::TempFolder folder_;
    Engine engine_;
};

TEST_F(GpuTransfers, BringAFileToAGpuAndBack) {
    for (const std::uint64_t bytes : {1U, 4095U, 4096U, 1'000'003U, 20'000'000U}) {
        const std::string path = folder_ / "file";
        const std::vector<std::byte> content = file_of(path, bytes);
        const Memory memory = gpu_memory(bytes);
        engine_.read(path, memory);
        ASSERT_TRUE(look(memory) == content) << bytes;
        const std::string copy = folder_ / "copy";
        engine_.write(copy, ConstMemory(memory));
        std::vector<std::byte> back(bytes);
        engine_.read(copy, Memory(back));
        ASSERT_EQ(back, content) << bytes;
    }
    const FakeGpuCounters counted = fake_->counters();
    EXPECT_EQ(counted.synchronizations, 0U);
    EXPECT_EQ(counted.unpinned_async_copies, 0U);
    EXPECT_EQ(counted.missing_contexts, 0U);
    EXPECT_LE(counted.pinned_bytes_max, 40U << 20);
}

TEST_F(GpuTransfers, RefuseAClaimThatIsNotTrue) {
    const std::string path = folder_ / "file";
    static_cast<void>(file_of(path, 4096));
    std::vector<std::byte> host(4096);
    const Memory memory = gpu_memory(4096);
    for (const Memory& claim : {Memory(host.data(), 4096, MemoryKind::kDevice, 0),
                                Memory(memory.data, 4097, MemoryKind::kDevice, 0),
                                Memory(memory.data, 4096, MemoryKind::kDevice, 5)}) {
        try {
            engine_.read(path, claim);
            ADD_FAILURE() << "taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << error.what();
            EXPECT_THAT(error.what(), HasSubstr("GPU"));
        }
    }
    EXPECT_EQ(host, std::vector<std::byte>(4096));
    engine_.read(path, memory);
}

TEST_F(GpuTransfers, FailWithTheWordsOfTheDriver) {
    const std::string path = folder_ / "file";
    static_cast<void>(file_of(path, 3'000'000));
    const Memory memory = gpu_memory(3'000'000);
    engine_.read(path, memory);
    fake_->fail("cuMemcpyHtoDAsync", 2, cuda::CUDA_ERROR_LAUNCH_FAILED);
    try {
        engine_.read(path, memory);
        ADD_FAILURE() << "taken";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
        EXPECT_THAT(error.what(), HasSubstr("GPU 0"));
        EXPECT_FALSE(error.is_about_the_file()) << error.what();
    }
    engine_.read(path, memory);
}

TEST_F(GpuTransfers, SayWhyMemoryWasNotPinned) {
    const std::string path = folder_ / "file";
    const std::vector<std::byte> content = file_of(path, 300'000);
    const Memory memory = gpu_memory(300'000);
    fake_->fail("cuMemHostRegister", 1, cuda::CUDA_ERROR_OUT_OF_MEMORY, 1000);
    try {
        engine_.read(path, memory);
        ADD_FAILURE() << "taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kOutOfMemory);
        EXPECT_THAT(error.what(), HasSubstr("ulimit -l"));
    }
    fake_->calm();
    engine_.read(path, memory);
    EXPECT_EQ(look(memory), content);
}

TEST_F(GpuTransfers, OfManyThreadsKeepTheirBytesApart) {
    fake_->set_delays(5, 100);
    const std::string path = folder_ / "file";
    const std::vector<std::byte> content = file_of(path, 6'000'000);
    std::vector<Memory> memories;
    for (int i = 0; i < 4; ++i) {
        memories.push_back(gpu_memory(content.size()));
    }
    std::vector<std::thread> threads;
    for (const Memory& memory : memories) {
        threads.emplace_back([&, memory] {
            for (int round = 0; round < 3; ++round) {
                engine_.read(path, memory);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Memory& memory : memories) {
        EXPECT_EQ(look(memory), content);
    }
}

// Transfers that wait for a busy stream hold no others up, in either direction, however many wait.
TEST_F(GpuTransfers, AreNotHeldUpByAStreamOfOthers) {
    const std::string path = folder_ / "file";
    const std::string out = folder_ / "out";
    const std::vector<std::byte> content = file_of(path, 3'000'000);
    const Memory memory = gpu_memory(content.size());
    const Memory held = gpu_memory(content.size());
    const Memory sent = gpu_memory(content.size());
    engine_.read(path, sent);
    BusyStream busy(*driver_);
    std::vector<Transfer> waiting;
    for (int i = 0; i < 20; ++i) {
        waiting.push_back(engine_.read_async(path, held, 0, busy.after()));
    }
    waiting.push_back(engine_.write_async(out, ConstMemory(sent), 0, busy.after()));
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(engine_.read_async(path, memory).wait_for(std::chrono::seconds(10)));
        ASSERT_TRUE(
            engine_.write_async(folder_ / "other", memory).wait_for(std::chrono::seconds(10)));
        std::vector<std::byte> host(content.size());
        ASSERT_TRUE(engine_.read_async(path, Memory(host)).wait_for(std::chrono::seconds(10)));
        EXPECT_EQ(host, content);
    }
    EXPECT_EQ(look(memory), content);
    waiting.front().cancel();
    try {
        static_cast<void>(waiting.front().wait_for(std::chrono::seconds(10)));
        ADD_FAILURE() << "not cancelled while it waits for the stream";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
    }
    for (std::size_t i = 1; i < waiting.size(); ++i) {
        EXPECT_FALSE(waiting[i].done()) << i;
    }
    busy.end();
    for (std::size_t i = 1; i < waiting.size(); ++i) {
        waiting[i].wait();
    }
    std::vector<std::byte> back(content.size());
    engine_.read(out, Memory(back));
    EXPECT_EQ(back, content);
    EXPECT_EQ(look(held), content);
    EXPECT_EQ(fake_->counters().missing_contexts, 0U);
}

// To make a context takes long, and the first transfer to a GPU does; those of the host go on.
TEST_F(GpuTransfers, OfTheHostGoOnWhileAGpuIsBegun) {
    const std::string path = folder_ / "file";
    const std::vector<std::byte> content = file_of(path, 3'000'000);
    const Memory memory = gpu_memory(content.size());
    fake_->stop_at("cuStreamCreate");
    std::vector<Transfer> begun;
    for (int i = 0; i < 3; ++i) {
        begun.push_back(engine_.read_async(path, memory));
    }
    std::vector<std::byte> host(content.size());
    const bool went_on =
        engine_.read_async(path, Memory(host)).wait_for(std::chrono::seconds(10)).has_value();
    begun.back().cancel();
    EXPECT_FALSE(begun.front().done());
    fake_->stop_at(nullptr);
    EXPECT_TRUE(went_on);
    begun[0].wait();
    begun[1].wait();
    EXPECT_EQ(look(memory), content);
    EXPECT_EQ(fake_->counters().streams_made, 2U);
}

// Each of those that wait for a GPU that cannot be begun says why; the next begins it.
TEST_F(GpuTransfers, SayWhyAGpuWasNotBegun) {
    const std::string path = folder_ / "file";
    static_cast<void>(file_of(path, 300'000));
    const Memory memory = gpu_memory(300'000);
    fake_->fail("cuStreamCreate", 1, cuda::CUDA_ERROR_OUT_OF_MEMORY, 1000);
    std::vector<Transfer> begun;
    for (int i = 0; i < 5; ++i) {
        begun.push_back(engine_.read_async(path, memory));
    }
    for (Transfer& transfer : begun) {
        try {
            transfer.wait();
            ADD_FAILURE() << "taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kOutOfMemory);
            EXPECT_THAT(error.what(), HasSubstr("cuStreamCreate"));
        }
    }
    fake_->calm();
    engine_.read(path, memory);
}

// The work that a transfer begins after fails: so does the transfer.
TEST_F(GpuTransfers, FailWithTheStreamThatTheyWaitFor) {
    const std::string path = folder_ / "file";
    static_cast<void>(file_of(path, 300'000));
    const Memory memory = gpu_memory(300'000);
    engine_.read(path, memory);
    BusyStream busy(*driver_);
    Transfer transfer = engine_.read_async(path, memory, 0, busy.after());
    fake_->fail("cuEventQuery", 1, cuda::CUDA_ERROR_LAUNCH_FAILED);
    try {
        static_cast<void>(transfer.wait_for(std::chrono::seconds(10)));
        ADD_FAILURE() << "the error was not seen";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
        EXPECT_THAT(error.what(), HasSubstr("stream"));
    }
    busy.end();
    engine_.read(path, memory);
}

// A transfer of several places, on two GPUs with a stream each.
using GpuTransfersAlone = GpuTransfers;
TEST_F(GpuTransfersAlone, DISABLED_OfTwoGpus) {
    ASSERT_EQ(gpus().gpus.size(), 2U);
    const std::string path = folder_ / "file";
    const std::vector<std::byte> content = file_of(path, 3'000'000);
    std::vector<Memory> memories;
    for (const std::int32_t gpu : {0, 1}) {
        const cuda::CUdeviceptr memory = device_bytes(1'000'000, gpu);
        memories.push_back(
            device_memory(reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory)), 1'000'000));
        EXPECT_EQ(memories.back().device, gpu);
    }
    std::vector<std::byte> host(1'000'000);
    TransferRequest request;
    request.paths = {path};
    std::vector<Extent>& list = request.extents;
    for (std::uint64_t at = 0; at < 1'000'000; at += 100'000) {
        list.push_back({at, Memory(memories[0].data + at, 100'000, MemoryKind::kDevice, 0), 0});
        list.push_back(
            {1'000'000 + at, Memory(memories[1].data + at, 100'000, MemoryKind::kDevice, 1), 0});
        list.push_back({2'000'000 + at, Memory(host.data() + at, 100'000), 0});
    }
    engine_.submit(std::move(request)).wait();
    std::vector<std::byte> found = look(memories[0]);
    for (const std::vector<std::byte>& more : {look(memories[1]), host}) {
        found.insert(found.end(), more.begin(), more.end());
    }
    EXPECT_EQ(found, content);
    EXPECT_EQ(fake_->counters().missing_contexts, 0U);
    const EngineDescription what = engine_.describe();
    ASSERT_EQ(what.gpus.size(), 2U);
    for (const std::int32_t gpu : {0, 1}) {
        const EngineDescription::OfGpu& use = what.gpus[static_cast<std::size_t>(gpu)];
        EXPECT_EQ(use.number, gpu);
        EXPECT_GE(use.channels, 1U);
        EXPECT_GT(use.pinned_bytes, 0U);
        EXPECT_LE(use.pinned_bytes, use.pinned_bytes_max);
        EXPECT_THAT(what.text(), HasSubstr(use.way));
    }
    EXPECT_EQ(what.gpus[0].pinned_bytes + what.gpus[1].pinned_bytes,
              fake_->counters().pinned_bytes_now);
}

TEST_F(GpuTransfers, OfTwoGpusAndTheHostInOne) {
    EXPECT_TRUE(runs_alone("GpuTransfersAlone.DISABLED_OfTwoGpus", {"FAKE_GPU_DEVICES=2"}));
}

// The process ends with a transfer under way and an engine that nobody closed.
TEST(GpuProcess, DISABLED_EndsWithoutClose) {
    const auto fake = fake_gpu::FakeGpu::find();
    ASSERT_TRUE(gpus().available);
    const Driver* calls = *driver();
    cuda::CUdeviceptr memory = 0;
    {
        const Current current(*calls, primary_context(*calls, 0).value());
        ASSERT_EQ(calls->cuMemAlloc(&memory, 8 << 20), cuda::CUDA_SUCCESS);
    }
    static const support::TempFolder folder;
    static Engine engine;
    const std::string path = folder / "file";
    const std::vector<std::byte> content(8 << 20, std::byte{3});
    engine.write(path, ConstMemory(content));
    fake->set_rate(200e6, 200e6);
    const Memory target =
        device_memory(reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory)), content.size());
    static const Transfer under_way = engine.read_async(path, target);
}

TEST_F(GpuTransfers, MayBeUnderWayWhenTheProcessEnds) {
    EXPECT_TRUE(runs_alone("GpuProcess.DISABLED_EndsWithoutClose", {}));
}

// After a fork the parent goes on; in the child host memory moves, and memory of the GPU is an
// error that says why.
TEST_F(GpuTransfers, GoOnInTheParentOfAFork) {
    const std::string path = folder_ / "file";
    const std::vector<std::byte> content = file_of(path, 2'000'000);
    const Memory memory = gpu_memory(content.size());
    fake_->set_delays(3, 200);
    Transfer under_way = engine_.read_async(path, memory);
    const pid_t child = ::fork();
    if (child == 0) {
        int status = 1;
        try {
            std::vector<std::byte> host(content.size());
            engine_.read(path, Memory(host));
            status = host == content ? 2 : 1;
            engine_.read(path, memory);
        } catch (const Error& error) {
            status = status == 2 && std::string(error.what()).find("fork") != std::string::npos
                         ? 0
                         : status;
        }
        ::_exit(status);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    under_way.wait();
    EXPECT_EQ(look(memory), content);
    engine_.read(path, memory);
}

TEST_F(GpuTransfers, MayBeCancelledWithCopiesOut) {
    const std::string path = folder_ / "file";
    const std::vector<std::byte> content = file_of(path, 8'000'000);
    const Memory memory = gpu_memory(content.size());
    for (int round = 0; round < 10; ++round) {
        fake_->set_rate(1e9, 1e9);
        Transfer transfer = engine_.read_async(path, memory);
        std::this_thread::sleep_for(std::chrono::microseconds(round * 700));
        transfer.cancel();
        try {
            transfer.wait();
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kCancelled) << error.what();
        }
    }
    fake_->calm();
    engine_.read(path, memory);
    EXPECT_EQ(look(memory), content);
}

TEST_F(GpuTransfers, NeedAStreamThatExists) {
    const std::string path = folder_ / "file";
    static_cast<void>(file_of(path, 4096));
    const Memory memory = gpu_memory(4096);
    TransferOptions options;
    options.streams = {{0xDEAD0000, 0}};
    try {
        engine_.read(path, memory, 0, options);
        ADD_FAILURE() << "taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.what(), HasSubstr("0xdead0000"));
    }
    Transfer transfer = engine_.read_async(path, memory);
    transfer.join({0, 0});
    for (const StreamHandle none : {StreamHandle{0xDEAD0000, 0}, StreamHandle{0, 7}}) {
        try {
            transfer.join(none);
            ADD_FAILURE() << "joined";
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << error.what();
        }
    }
}

}  // namespace
}  // namespace penstock::device
