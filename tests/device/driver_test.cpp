// SPDX-License-Identifier: Apache-2.0
// The driver: absent, a stub, too old, without a GPU, in a forked child; loaded once, and only when
// it is asked for. Each case has a process of its own, for a driver stays loaded.
#include "device/cuda/driver.hpp"

#include "device/fake_gpu.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace penstock::device {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The process ends with `work`'s answer; this says what it was.
template <typename Work>
bool in_child(const Work& work) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(work() ? 0 : 1);
    }
    int status = 0;
    return ::waitpid(child, &status, 0) == child && status == 0;
}

void expect_absent(const std::vector<std::string>& words) {
    const GpuReport report = gpus();
    EXPECT_FALSE(report.available);
    EXPECT_THAT(report.gpus, IsEmpty());
    for (const std::string& word : words) {
        EXPECT_THAT(report.reason, HasSubstr(word));
    }
    EXPECT_EQ(loaded_driver(), nullptr);
    int on_host = 0;
    try {
        static_cast<void>(device_memory(&on_host, sizeof(on_host)));
        ADD_FAILURE() << "memory of a GPU without a GPU";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.what(), HasSubstr(report.reason));
    }
}

std::string maps() {
    std::ifstream file("/proc/self/maps");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

TEST(DriverAlone, DISABLED_IsNotInstalled) {
    if (void* real = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL); real != nullptr) {
        GTEST_SKIP() << "this machine has a libcuda.so.1";
    }
    expect_absent({"libcuda.so.1", "install NVIDIA's driver", "--gpus all"});
}

TEST(Driver, SaysThatItIsNotInstalled) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_IsNotInstalled", {kWithoutFake}));
}

// Two versions of CUDA in one process, each with a driver of its own: the first is used.
TEST(DriverAlone, DISABLED_IsThereTwice) {
    const support::TempFolder folder;
    std::vector<void*> libraries;
    for (const char* name : {"a", "b"}) {
        std::filesystem::create_directories(folder / name);
        const std::string library = folder / name + "/libcuda.so.1";
        std::filesystem::copy_file(fake_folder() + "/libcuda.so.1", library);
        libraries.push_back(::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL));
        ASSERT_NE(libraries.back(), nullptr);
    }
    const auto used = driver();
    ASSERT_TRUE(used) << used.error().describe();
    EXPECT_EQ((*used)->library, folder / "a" + "/libcuda.so.1");

    const auto call = [&](auto* type, const char* name) {
        return reinterpret_cast<decltype(type)>(::dlsym(libraries[1], name));
    };
    cuda::CUcontext context = nullptr;
    cuda::CUdeviceptr memory = 0;
    ASSERT_EQ(call((*used)->cuInit, "cuInit")(0), cuda::CUDA_SUCCESS);
    ASSERT_EQ(call((*used)->cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")(&context, 0),
              cuda::CUDA_SUCCESS);
    ASSERT_EQ(call((*used)->cuCtxPushCurrent, "cuCtxPushCurrent_v2")(context), cuda::CUDA_SUCCESS);
    ASSERT_EQ(call((*used)->cuMemAlloc, "cuMemAlloc_v2")(&memory, 1 << 20), cuda::CUDA_SUCCESS);
    auto* const address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory));
    try {
        static_cast<void>(device_memory(address, 1 << 20));
        ADD_FAILURE() << "memory of another driver was taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.what(), HasSubstr("has loaded 2 CUDA drivers"));
        EXPECT_THAT(error.what(), HasSubstr("Penstock uses " + (folder / "a")));
    }
    Engine engine;
    EXPECT_THROW(engine.write(folder / "file", Memory(static_cast<std::byte*>(address), 1 << 20,
                                                      MemoryKind::kDevice, 0)),
                 Error);
    std::vector<std::byte> host(1 << 20);
    EXPECT_EQ(engine.write(folder / "file", host), host.size());
}

TEST(Driver, ThatIsThereTwiceIsTheFirstAndMemoryOfTheOtherIsRefused) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_IsThereTwice", {kWithoutFake}));
}

// The library in the user's space and the module of the kernel are of different releases.
TEST(DriverAlone, DISABLED_DoesNotFitItsModule) {
    fake_gpu::FakeGpu::find()->fail("cuInit", 1, cuda::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 10);
    expect_absent({"of another release than libcuda", "restart the machine after an update"});
}

TEST(Driver, SaysThatItDoesNotFitItsModule) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_DoesNotFitItsModule", {}));
}

TEST(DriverAlone, DISABLED_IsOfTheWrongPackage) {
    fake_gpu::FakeGpu::find()->fail("cuInit", 1, cuda::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
                                    10);
    expect_absent({"cuda-compat", "LD_LIBRARY_PATH"});
}

TEST(Driver, NamesThePackageThatDoesNotServeItsGpu) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_IsOfTheWrongPackage", {}));
}

TEST(DriverAlone, DISABLED_IsAStub) {
    expect_absent({"stub", "LD_LIBRARY_PATH"});
}

TEST(Driver, NamesAStub) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_IsAStub", {"FAKE_GPU_STUB=1"}));
}

TEST(DriverAlone, DISABLED_ShowsNoGpu) {
    expect_absent({"CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES is '-1'", "nvidia-smi"});
}

TEST(Driver, SaysWhatHidesTheGpus) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_ShowsNoGpu",
                           {"FAKE_GPU_DEVICES=0", "CUDA_VISIBLE_DEVICES=-1"}));
}

TEST(DriverAlone, DISABLED_LacksACall) {
    expect_absent({"cuStreamGetCtx", "12.0"});
}

TEST(Driver, NamesTheCallThatIsMissing) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_LacksACall", {"FAKE_GPU_HIDE=cuStreamGetCtx"}));
}

TEST(DriverAlone, DISABLED_IsOld) {
    expect_absent({"11.8", "12.0", "release 525"});
}

TEST(Driver, SaysThatItIsTooOld) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_IsOld", {"FAKE_GPU_DRIVER_VERSION=11080"}));
}

TEST(DriverAlone, DISABLED_HasNoBatches) {
    const GpuReport report = gpus();
    EXPECT_TRUE(report.available) << report.reason;
    EXPECT_EQ(report.driver_version, 12020);
    ASSERT_EQ(report.missing_features.size(), 1U);
    EXPECT_THAT(report.missing_features.front(), HasSubstr("cuMemcpyBatchAsync"));
}

TEST(Driver, ReportsWhatAnOlderOneLacks) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_HasNoBatches", {"FAKE_GPU_DRIVER_VERSION=12020"}));
}

TEST(DriverAlone, DISABLED_ManyThreadsAsk) {
    std::vector<const Driver*> seen(8);
    std::vector<std::thread> threads;
    for (const Driver*& mine : seen) {
        threads.emplace_back([&mine] { mine = driver().value_or(nullptr); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Driver* mine : seen) {
        EXPECT_NE(mine, nullptr);
        EXPECT_EQ(mine, seen.front());
    }
    EXPECT_EQ(fake_gpu::FakeGpu::find()->calls("cuInit"), 1U);
}

TEST(Driver, IsLoadedOnceByManyThreads) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_ManyThreadsAsk", {}));
}

TEST(DriverAlone, DISABLED_ForksAfterwards) {
    ASSERT_TRUE(gpus().available);
    ASSERT_NE(loaded_driver(), nullptr);
    const auto fake = fake_gpu::FakeGpu::find();
    const std::uint64_t before = fake->counters().calls;
    EXPECT_TRUE(in_child([&] {
        const GpuReport report = gpus();
        return !report.available && report.reason.find("fork") != std::string::npos &&
               report.reason.find("spawn") != std::string::npos && loaded_driver() == nullptr &&
               !may_call_driver() && fake->counters().calls == before;
    }));
    EXPECT_TRUE(gpus().available);
}

TEST(Driver, IsNotTouchedInTheChildOfAFork) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_ForksAfterwards", {}));
}

TEST(DriverAlone, DISABLED_AnotherLibraryBegan) {
    void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    ASSERT_NE(library, nullptr);
    auto* begin = reinterpret_cast<cuda::cuInit_type*>(::dlsym(library, "cuInit"));
    auto* count =
        reinterpret_cast<cuda::cuDeviceGetCount_type*>(::dlsym(library, "cuDeviceGetCount"));
    int devices = 0;
    ASSERT_EQ(begin(0), cuda::CUDA_SUCCESS);
    ASSERT_EQ(count(&devices), cuda::CUDA_SUCCESS);
    EXPECT_TRUE(in_child([] {
        const std::string reason = gpus().reason;
        if (reason.find("fork") == std::string::npos) {
            ADD_FAILURE() << reason;
            return false;
        }
        return true;
    }));
    EXPECT_TRUE(gpus().available);
}

TEST(Driver, SaysSoWhereAnotherLibraryBeganCudaBeforeAFork) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_AnotherLibraryBegan", {}));
}

// A failure is not kept: the second question has the answer.
TEST(DriverAlone, DISABLED_FailsOnce) {
    const GpuReport first = gpus();
    EXPECT_TRUE(first.available || !first.reason.empty());
    const GpuReport second = gpus();
    EXPECT_TRUE(second.available) << second.reason;
    EXPECT_EQ(second.gpus.size(), 1U);
    EXPECT_THAT(second.gpus.front().name, Not(IsEmpty()));
    EXPECT_GT(second.gpus.front().memory_bytes, 0U);
}

TEST(Driver, TriesAgainWhicheverCallFailed) {
    for (int nth = 1; nth <= 14; ++nth) {
        EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_FailsOnce",
                               {"FAKE_GPU_FAIL=*:" + std::to_string(nth) + ":999"}))
            << "call " << nth;
    }
}

// libcuda.so.1 can be found, and is not opened.
TEST(DriverAlone, DISABLED_MovesHostBytes) {
    const std::string path =
        ::testing::TempDir() + "penstock_host_bytes_" + std::to_string(::getpid());
    {
        Engine engine;
        std::vector<std::byte> bytes(1 << 20, std::byte{7});
        engine.write(path, ConstMemory(bytes));
        std::vector<std::byte> back(bytes.size());
        engine.read(path, Memory(back));
        EXPECT_EQ(back, bytes);
        static_cast<void>(engine.describe());
    }
    ::unlink(path.c_str());
    EXPECT_THAT(maps(), Not(HasSubstr("libcuda")));
    EXPECT_THAT(maps(), Not(HasSubstr("libcufile")));
    EXPECT_EQ(loaded_driver(), nullptr);
    EXPECT_TRUE(gpus().available);  // it was there to be found
    EXPECT_THAT(maps(), HasSubstr("libcuda"));
}

TEST(Driver, IsNotOpenedByWorkOnHostMemory) {
    EXPECT_TRUE(runs_alone("DriverAlone.DISABLED_MovesHostBytes",
                           {kWithoutFake, "LD_LIBRARY_PATH=" + fake_folder()}));
}

}  // namespace
}  // namespace penstock::device
