// SPDX-License-Identifier: Apache-2.0
#include "device/context.hpp"

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
    if (cuda::CUcontext known = place.load(); known != nullptr) {
        return known;
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
    cuda::CUcontext before = nullptr;
    if (!place.compare_exchange_strong(before, context)) {
        driver.cuDevicePrimaryCtxRelease(number);  // another thread was first; it is the same one
        return before;
    }
    return context;
}

}  // namespace penstock::device
