// SPDX-License-Identifier: Apache-2.0
// The words for what the driver refuses to make: one text for each kind, wherever it is asked for.
#pragma once

#include "base/result.hpp"
#include "device/cuda/context.hpp"

#include <cstdint>

namespace penstock::device {

/// The answer of a call of the driver.
struct CallResult {
    cuda::CUresult result = cuda::CUDA_SUCCESS;
    const char* call = "cuCtxPushCurrent";

    [[nodiscard]] bool ok() const { return result == cuda::CUDA_SUCCESS; }
};

/// A stream or an event.
[[nodiscard]] base::Error object_refused(const Current& current, CallResult refusal,
                                         std::int32_t device) noexcept;

/// Memory of a GPU: how much of it is free, and what to do.
[[nodiscard]] base::Error gpu_memory_refused(const Current& current, CallResult refusal,
                                             std::uint64_t bytes, std::int32_t device) noexcept;

/// Host memory that cannot be pinned: the limit on locked memory, and how to raise it.
/// kInvalidArgument where somebody has pinned it already.
[[nodiscard]] base::Error pinning_refused(const Current& current, CallResult refusal,
                                          std::uint64_t bytes, std::int32_t device) noexcept;

}  // namespace penstock::device
