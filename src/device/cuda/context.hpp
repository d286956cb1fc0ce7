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

/// The context is current on this thread while this lives, whatever was so before. A thread of the
/// caller's gets its own back. Calls that are made meanwhile leave captures of CUDA graphs alone:
/// while any thread captures one (torch.cuda.graph()), a question about an event or an allocation
/// would end that, wherever it is made.
class Current {
public:
    Current(const Driver& driver, cuda::CUcontext context) noexcept
        : driver_(driver), result_(driver.cuCtxPushCurrent(context)) {
        relaxed_ = result_ == cuda::CUDA_SUCCESS &&
                   driver_.cuThreadExchangeStreamCaptureMode(&mode_) == cuda::CUDA_SUCCESS;
    }
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

private:
    const Driver& driver_;
    cuda::CUresult result_;
    cuda::CUstreamCaptureMode mode_ = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;  ///< that to exchange
    bool relaxed_ = false;
};

/// Does `end` with the context current: what a destructor gives back. A push that is refused is
/// tried again, for nobody comes back to it; without a context `end` is not done.
template <typename End>
void end_in(const Driver& driver, cuda::CUcontext context, End&& end) noexcept {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i) {
        const Current current(driver, context);
        if (current.result() == cuda::CUDA_SUCCESS) {
            end();
            return;
        }
    }
}

}  // namespace penstock::device
