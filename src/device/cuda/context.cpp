// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/context.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>

namespace penstock::device {

using base::fail;
using base::Result;

namespace {

constexpr std::size_t kDevicesMax = 64;

std::atomic<cuda::CUcontext>& kept(std::int32_t device) {
    static std::array<std::atomic<cuda::CUcontext>, kDevicesMax> contexts{};
    return contexts[static_cast<std::size_t>(device)];
}

}  // namespace

Result<cuda::CUcontext> primary_context(const Driver& driver, std::int32_t device) {
    if (device < 0 || device >= driver.gpus || device >= static_cast<int>(kDevicesMax)) {
        return fail(
            base::error(ErrorCode::kInvalidArgument, "gpu",
                        fmt::format("there is no GPU {}: this process sees {}, counted from 0",
                                    device, driver.gpus)));
    }
    std::atomic<cuda::CUcontext>& place = kept(device);
    cuda::CUcontext before = place.load();
    unsigned int flags = 0;
    int active = 0;
    // A reset (cudaDeviceReset) takes a context and all that retained it.
    if (before != nullptr &&
        driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == cuda::CUDA_SUCCESS &&
        active == 0) {
        place.compare_exchange_strong(before, nullptr);
        before = nullptr;
    }
    const std::string subject = fmt::format("the context of GPU {}", device);
    cuda::CUdevice number = 0;
    if (const auto result = driver.cuDeviceGet(&number, device); result != cuda::CUDA_SUCCESS) {
        return fail(cuda_error(driver, result, "cuDeviceGet", "gpu", subject));
    }
    cuda::CUcontext context = nullptr;
    if (const auto result = driver.cuDevicePrimaryCtxRetain(&context, number);
        result != cuda::CUDA_SUCCESS) {
        return fail(cuda_error(driver, result, "cuDevicePrimaryCtxRetain", "gpu", subject));
    }
    // The one that was retained before, or by another thread just now; else a program has made it
    // again after a reset.
    if (context == before ||
        (!place.compare_exchange_strong(before, context) && before == context)) {
        driver.cuDevicePrimaryCtxRelease(number);
    }
    return context;
}

Result<GpuContext> gpu_context(std::int32_t device) {
    PENSTOCK_TRY(calls, driver());
    PENSTOCK_TRY(context, primary_context(*calls, device));
    return GpuContext{calls, context, device};
}

}  // namespace penstock::device
