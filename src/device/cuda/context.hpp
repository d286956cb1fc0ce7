// SPDX-License-Identifier: Apache-2.0
// The context that calls are made in: the primary one of a device, which torch, CuPy and the CUDA
// runtime use too.
#pragma once

#include "base/result.hpp"
#include "device/cuda/driver.hpp"

#include <cstdint>

namespace penstock::device {

/// The primary context of GPU number `device`; the first call retains it until the process ends,
/// and the first after a reset the new one.
/// kInvalidArgument where there is no such GPU. Thread-safe.
[[nodiscard]] base::Result<cuda::CUcontext> primary_context(const Driver& driver,
                                                            std::int32_t device);

/// The driver and context that calls for a GPU need.
struct GpuContext {
    const Driver* driver = nullptr;
    cuda::CUcontext context = nullptr;  ///< the primary one
    std::int32_t device = 0;
};

/// Loads the driver where it is not loaded yet. Errors are those of driver() and
/// primary_context(). Thread-safe.
[[nodiscard]] base::Result<GpuContext> gpu_context(std::int32_t device);

/// The context is current on this thread while this lives, whatever was so before. A thread of the
/// caller's gets its own back. Calls that are made meanwhile leave captures of CUDA graphs alone:
/// while any thread captures one (torch.cuda.graph()), a question about an event or an allocation
/// would end that, wherever it is made.
class Current {
public:
    Current(const Driver& driver, cuda::CUcontext context) noexcept
        : driver_(driver), context_(context), result_(driver.cuCtxPushCurrent(context)) {
        relaxed_ = result_ == cuda::CUDA_SUCCESS &&
                   driver_.cuThreadExchangeStreamCaptureMode(&mode_) == cuda::CUDA_SUCCESS;
    }
    explicit Current(const GpuContext& gpu) noexcept : Current(*gpu.driver, gpu.context) {}
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() {
        if (relaxed_) {
            driver_.cuThreadExchangeStreamCaptureMode(&mode_);
        }
        if (result_ == cuda::CUDA_SUCCESS) {
            cuda::CUcontext popped = nullptr;
            driver_.cuCtxPopCurrent(&popped);
        }
    }
    /// CUDA_SUCCESS, or why it is not current.
    [[nodiscard]] cuda::CUresult result() const { return result_; }
    [[nodiscard]] const Driver& driver() const { return driver_; }
    [[nodiscard]] cuda::CUcontext context() const { return context_; }

private:
    const Driver& driver_;
    cuda::CUcontext context_;
    cuda::CUresult result_;
    cuda::CUstreamCaptureMode mode_ = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;  ///< that to exchange
    bool relaxed_ = false;
};

/// Calls `end` with the Current of this context: what a destructor gives back. A push that is
/// refused is tried again, for nobody comes back to it; without a context `end` is not done.
template <typename End>
void end_in(const Driver& driver, cuda::CUcontext context, End&& end) noexcept {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i) {
        const Current current(driver, context);
        if (current.result() == cuda::CUDA_SUCCESS) {
            end(current);
            return;
        }
    }
}

}  // namespace penstock::device
