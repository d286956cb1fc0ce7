// SPDX-License-Identifier: Apache-2.0
// The program of the statements. It runs itself again with --before-init=… for what has to be asked
// in a process that has not initialized the driver.
#include "device_conformance/gpu_driver.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

namespace {

using penstock::device::cuda::conformance::Driver;
using namespace penstock::device::cuda;  // NOLINT(google-build-using-namespace)

int before_init(std::string_view what) {
    Driver* gpu = Driver::opened();
    if (gpu == nullptr) {
        return 2;
    }
    if (what == "version") {
        int version = 0;
        const char* name = nullptr;
        const bool known = gpu->cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= 12000 &&
                           gpu->cuGetErrorName(CUDA_ERROR_NOT_READY, &name) == CUDA_SUCCESS;
        return known ? 0 : 1;
    }
    int count = 0;
    if (what == "fork") {
        gpu->cuInit(0);
        const pid_t child = fork();
        if (child == 0) {
            _exit(gpu->cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        return status == 0 ? 0 : 1;
    }
    CUcontext context = nullptr;
    const bool refused = gpu->cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                         gpu->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_INITIALIZED &&
                         gpu->cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED;
    return refused ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    constexpr std::string_view kBeforeInit = "--before-init=";
    for (int i = 1; i < count; ++i) {
        const std::string_view argument = arguments[i];
        if (argument.starts_with(kBeforeInit)) {
            return before_init(argument.substr(kBeforeInit.size()));
        }
    }
    testing::InitGoogleTest(&count, arguments);
    if (Driver* gpu = Driver::get()) {
        std::array<char, 128> name{};
        gpu->cuDeviceGetName(name.data(), static_cast<int>(name.size()), 0);
        std::printf("device 0: %s, CUDA %d.%d\n", name.data(), gpu->version / 1000,
                    gpu->version % 1000 / 10);
    }
    return RUN_ALL_TESTS();
}
