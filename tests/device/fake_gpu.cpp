// SPDX-License-Identifier: Apache-2.0
#include "device/fake_gpu.hpp"

#include "device/cuda/context.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

namespace penstock::device {

namespace {

// Before main(), so that no test comes first.
[[gnu::constructor]] void load_fake() {
    if (std::getenv("PENSTOCK_TEST_WITHOUT_FAKE_GPU") == nullptr) {
        for (const char* library : {"/libcuda.so.1", "/libcufile.so.0"}) {
            ::dlopen((fake_folder() + library).c_str(), RTLD_LAZY | RTLD_LOCAL);
        }
    }
}

// A filter that matches nothing would pass.
bool exists(const std::string& name) {
    const auto& program = *::testing::UnitTest::GetInstance();
    for (int i = 0; i < program.total_test_suite_count(); ++i) {
        const auto& suite = *program.GetTestSuite(i);
        for (int j = 0; j < suite.total_test_count(); ++j) {
            if (name == std::string(suite.name()) + "." + suite.GetTestInfo(j)->name()) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace

std::string fake_folder() {
    // A kit (tools/make_gpu_kit.py) has moved.
    const char* const moved = std::getenv("PENSTOCK_FAKE_GPU");
    return moved != nullptr ? moved
                            : std::filesystem::path(PENSTOCK_FAKE_GPU).parent_path().string();
}

::testing::AssertionResult runs_alone(const std::string& name,
                                      const std::vector<std::string>& environment) {
    std::istringstream names(name);
    for (std::string one; std::getline(names, one, ':');) {
        if (!exists(one)) {
            return ::testing::AssertionFailure() << "there is no test " << one;
        }
    }
    const pid_t child = ::fork();
    if (child == 0) {
        for (const std::string& setting : environment) {
            ::putenv(const_cast<char*>(setting.c_str()));
        }
        ::unsetenv("GTEST_FILTER");
        const std::string filter = "--gtest_filter=" + name;
        ::execl("/proc/self/exe", "device_test", filter.c_str(), "--gtest_also_run_disabled_tests",
                "--gtest_brief=1", "--gtest_print_time=0", nullptr);
        ::_exit(127);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) {
        return ::testing::AssertionFailure() << "no process: " << std::strerror(errno);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << name << " ended with status " << status;
}

void OnFakeGpu::SetUp() {
    fake_ = fake_gpu::FakeGpu::find();
    ASSERT_TRUE(fake_.has_value()) << "the fake driver is not in " << fake_folder();
    fake_->calm();
    auto loaded = driver();
    ASSERT_TRUE(loaded.has_value()) << loaded.error().describe();
    driver_ = *loaded;
    fake_->reset_counters();
}

void OnFakeGpu::TearDown() {
    fake_->calm();
    for (const auto& [gpu, memory] : memory_) {
        const Current current(*driver_, primary_context(*driver_, gpu).value());
        driver_->cuMemFree(memory);
    }
}

BusyStream::BusyStream(const Driver& driver) : driver_(driver) {
    const Current current(driver_, primary_context(driver_, 0).value());
    EXPECT_EQ(driver_.cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
    using Launch = cuda::CUresult(cuda::CUstream, void (*)(void*), void*);
    EXPECT_EQ(other_call<Launch>("cuLaunchHostFunc")(
                  stream_,
                  [](void* argument) {
                      auto& self = *static_cast<BusyStream*>(argument);
                      self.busy_.wait(true);
                      self.ended_.store(true);  // the last that it does
                  },
                  this),
              cuda::CUDA_SUCCESS);
}

BusyStream::~BusyStream() {
    end();
    while (!ended_.load()) {
        std::this_thread::yield();
    }
    destroy();
}

void BusyStream::end() {
    busy_.store(false);
    busy_.notify_all();
}

void BusyStream::destroy() {
    const Current current(driver_, primary_context(driver_, 0).value());
    if (!std::exchange(destroyed_, true)) {
        EXPECT_EQ(driver_.cuStreamDestroy(stream_), cuda::CUDA_SUCCESS);
    }
}

TransferOptions BusyStream::after() const {
    TransferOptions options;
    options.streams = {{reinterpret_cast<std::uintptr_t>(stream_), 0}};
    return options;
}

cuda::CUdeviceptr OnFakeGpu::device_bytes(std::uint64_t bytes, std::int32_t gpu) {
    const Current current(*driver_, primary_context(*driver_, gpu).value());
    cuda::CUdeviceptr memory = 0;
    EXPECT_EQ(driver_->cuMemAlloc(&memory, bytes), cuda::CUDA_SUCCESS);
    memory_.emplace_back(gpu, memory);
    return memory;
}

void OnFakeGpu::put(cuda::CUdeviceptr to, const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(fake_->put(to, bytes.data(), bytes.size()));
}

std::vector<std::byte> OnFakeGpu::look(cuda::CUdeviceptr from, std::uint64_t bytes) {
    std::vector<std::byte> found(bytes);
    EXPECT_TRUE(fake_->look(from, found.data(), bytes));
    return found;
}

}  // namespace penstock::device
