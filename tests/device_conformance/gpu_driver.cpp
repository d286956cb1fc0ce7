// SPDX-License-Identifier: Apache-2.0
#include "device_conformance/gpu_driver.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace penstock::device::cuda::conformance {
namespace {

std::string& reason() {
    static std::string text;
    return text;
}

Driver* open_driver() {
    const char* other = std::getenv("CONFORMANCE_LIBCUDA");
    auto* driver = new Driver;
    driver->library = dlopen(other != nullptr ? other : "libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver->library == nullptr) {
        reason() = dlerror();
        return nullptr;
    }
    driver->cuGetProcAddress =
        reinterpret_cast<cuGetProcAddress_type*>(dlsym(driver->library, "cuGetProcAddress_v2"));
    if (driver->cuGetProcAddress == nullptr) {
        reason() = "the driver has no cuGetProcAddress_v2 (it is older than CUDA 12.0)";
        return nullptr;
    }
    const auto find = [driver](auto& function, const char* name, int since) {
        void* found = nullptr;
        CUdriverProcAddressQueryResult status{};
        driver->cuGetProcAddress(name, &found, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
#define CONFORMANCE_FIND(name, since, ...) find(driver->name, #name, since);
    PENSTOCK_CUDA_CALLS(CONFORMANCE_FIND)
    PENSTOCK_CUDA_OPTIONAL_CALLS(CONFORMANCE_FIND)
    PENSTOCK_CUDA_CALLS_OF_TESTS(CONFORMANCE_FIND)
    CONFORMANCE_CALLS(CONFORMANCE_FIND)
#undef CONFORMANCE_FIND
    driver->cuDriverGetVersion(&driver->version);
    return driver;
}

Driver* start_driver() {
    Driver* driver = Driver::opened();
    if (driver == nullptr) {
        return nullptr;
    }
    const CUresult started = driver->cuInit(0);
    int count = 0;
    if (started != CUDA_SUCCESS || driver->cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
        reason() = "cuInit() returned " + std::to_string(static_cast<unsigned>(started)) +
                   ", devices: " + std::to_string(count);
        return nullptr;
    }
    return driver;
}

}  // namespace

Driver* Driver::opened() {
    static Driver* driver = open_driver();
    return driver;
}

Driver* Driver::get() {
    static Driver* driver = start_driver();
    return driver;
}

const char* Driver::why_not() {
    return reason().c_str();
}

void Gpu::SetUp() {
    gpu = Driver::get();
    if (gpu == nullptr) {
        GTEST_SKIP() << "no GPU: " << Driver::why_not();
    }
    OK(gpu->cuDevicePrimaryCtxRetain(&context, 0));
    OK(gpu->cuCtxSetCurrent(context));
}

void Gpu::TearDown() {
    if (gpu == nullptr) {
        return;
    }
    gpu->cuCtxSetCurrent(context);
    gpu->cuCtxSynchronize();
    for (auto step = undo_.rbegin(); step != undo_.rend(); ++step) {
        (*step)();
    }
    gpu->cuCtxSetCurrent(nullptr);
    gpu->cuDevicePrimaryCtxRelease(0);
}

CUdeviceptr Gpu::device_memory(std::size_t bytes) {
    CUdeviceptr made = 0;
    EXPECT_EQ(gpu->cuMemAlloc(&made, bytes), CUDA_SUCCESS);
    undo_.emplace_back([this, made] { gpu->cuMemFree(made); });
    return made;
}

unsigned char* Gpu::pinned(std::size_t bytes, int fill) {
    void* made = nullptr;
    EXPECT_EQ(gpu->cuMemHostAlloc(&made, bytes, 0), CUDA_SUCCESS);
    std::memset(made, fill, bytes);
    undo_.emplace_back([this, made] { gpu->cuMemFreeHost(made); });
    return static_cast<unsigned char*>(made);
}

CUstream Gpu::stream(unsigned flags) {
    CUstream made = nullptr;
    EXPECT_EQ(gpu->cuStreamCreate(&made, flags), CUDA_SUCCESS);
    undo_.emplace_back([this, made] { gpu->cuStreamDestroy(made); });
    return made;
}

CUevent Gpu::event(unsigned flags) {
    CUevent made = nullptr;
    EXPECT_EQ(gpu->cuEventCreate(&made, flags), CUDA_SUCCESS);
    undo_.emplace_back([this, made] { gpu->cuEventDestroy(made); });
    return made;
}

std::vector<unsigned char> Gpu::bytes_of(CUdeviceptr memory, std::size_t bytes) {
    std::vector<unsigned char> found(bytes);
    EXPECT_EQ(gpu->cuMemcpyDtoH(found.data(), memory, bytes), CUDA_SUCCESS);
    return found;
}

Gate::Gate(Driver& gpu, CUstream stream) : open_(std::make_shared<std::atomic<bool>>(false)) {
    auto* kept = new std::shared_ptr<std::atomic<bool>>(open_);
    const auto wait = [](void* data) {
        const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> mine(
            static_cast<std::shared_ptr<std::atomic<bool>>*>(data));
        while (!**mine) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    };
    if (gpu.cuLaunchHostFunc(stream, wait, kept) != CUDA_SUCCESS) {
        ADD_FAILURE() << "cuLaunchHostFunc";
        delete kept;
    }
}

int run_before_init(const char* name) {
    const pid_t child = fork();
    if (child == 0) {
        const std::string argument = std::string("--before-init=") + name;
        execl("/proc/self/exe", "device_conformance_test", argument.c_str(), nullptr);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace penstock::device::cuda::conformance
