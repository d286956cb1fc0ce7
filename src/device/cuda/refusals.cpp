// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/refusals.hpp"

#include "base/text/units.hpp"
#include "os/machine/limits.hpp"

#include <fmt/format.h>

#include <new>
#include <string>

namespace penstock::device {

using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

std::string free_text(const Current& current) {
    std::size_t unused = 0;
    std::size_t total = 0;
    if (current.result() != CUDA_SUCCESS ||
        current.driver().cuMemGetInfo(&unused, &total) != CUDA_SUCCESS) {
        return {};
    }
    return fmt::format(" ({} of its {} are free)", base::format_bytes(unused),
                       base::format_bytes(total));
}

// The words of the driver, and `more` behind them.
template <typename Subject, typename More>
base::Error refused(const Current& current, CallResult refusal, Subject&& subject,
                    More&& more) noexcept {
    const auto words = [&](const std::string& what) {
        return cuda_error(current.driver(), refusal.result, refusal.call, "gpu", what);
    };
    try {
        base::Error error = words(subject());
        error.message += more();
        return error;
    } catch (const std::bad_alloc&) {
        return words({});
    }
}

}  // namespace

base::Error object_refused(const Current& current, CallResult refusal,
                           std::int32_t device) noexcept {
    return refused(
        current, refusal, [&] { return fmt::format("GPU {}", device); },
        [] { return std::string(); });
}

base::Error gpu_memory_refused(const Current& current, CallResult refusal, std::uint64_t bytes,
                               std::int32_t device) noexcept {
    return refused(
        current, refusal,
        [&] { return fmt::format("{} of memory of GPU {}", base::format_bytes(bytes), device); },
        [&] {
            return refusal.result == CUDA_ERROR_OUT_OF_MEMORY
                       ? "; ask for less, or free what others have of it" + free_text(current)
                       : std::string();
        });
}

base::Error pinning_refused(const Current& current, CallResult refusal, std::uint64_t bytes,
                            std::int32_t device) noexcept {
    if (refusal.result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
        return base::error(ErrorCode::kInvalidArgument, "gpu",
                           "this memory, or a part of it, is pinned already; use it as it is");
    }
    return refused(
        current, refusal,
        [&] {
            return fmt::format("{} of host memory could not be pinned for GPU {}",
                               base::format_bytes(bytes), device);
        },
        [&]() -> std::string {
            switch (refusal.result) {
                case CUDA_ERROR_OUT_OF_MEMORY:
                case CUDA_ERROR_NOT_PERMITTED:
                case CUDA_ERROR_OPERATING_SYSTEM:
                case CUDA_ERROR_INVALID_VALUE:
                    return fmt::format(
                        "; ask for less, raise the limit of the control group, or {}",
                        os::memlock_advice());
                default:
                    return {};
            }
        });
}

}  // namespace penstock::device
