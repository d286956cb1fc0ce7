// SPDX-License-Identifier: Apache-2.0
// Pins pages of our own for transfers with GPUs. What stays registered after its memory is unmapped
// would be taken for what is mapped there next.
#pragma once

#include "base/align.hpp"
#include "device/cuda/driver.hpp"

#include <cstddef>

namespace penstock::device {

/// Pins new pages, which nobody has pinned, in the current context. What is registered there all
/// the same is what others unmapped without taking it back: that is done here.
[[nodiscard]] inline cuda::CUresult pin_pages(const Driver& driver, std::byte* memory,
                                              std::size_t bytes, unsigned int flags = 0) {
    const auto pin = [&] {
        return driver.cuMemHostRegister(memory, bytes, cuda::CU_MEMHOSTREGISTER_PORTABLE | flags);
    };
    const cuda::CUresult result = pin();
    if (result != cuda::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
        return result;
    }
    for (std::size_t at = 0; at < bytes; at += base::kPageBytes) {
        driver.cuMemHostUnregister(memory + at);
    }
    return pin();
}

/// In the current context. A call that is refused is tried again, for nobody comes back to it.
inline void unpin_pages(const Driver& driver, void* memory) noexcept {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i) {
        if (driver.cuMemHostUnregister(memory) == cuda::CUDA_SUCCESS) {
            return;
        }
    }
}

}  // namespace penstock::device
