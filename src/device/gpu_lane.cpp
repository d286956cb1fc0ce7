// SPDX-License-Identifier: Apache-2.0
#include "device/gpu_lane.hpp"

#include "base/clock.hpp"
#include "base/text/units.hpp"
#include "device/cuda/pinned_pages.hpp"
#include "os/machine/limits.hpp"

#include <fmt/format.h>
#include <time.h>

#include <string>
#include <string_view>
#include <utility>

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

constexpr std::int64_t kNap = 20'000;  // nanoseconds

CUdeviceptr address_of(const std::byte* memory) {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
}

base::Error refused(const Driver& driver, CUresult result, std::string_view call,
                    const std::string& subject) {
    return cuda_error(driver, result, call, "stream", subject);
}

}  // namespace

Result<std::shared_ptr<GpuBytes>> GpuBytes::make(std::int32_t device, std::uint64_t bytes) {
    return base::as_result("stream", [&]() -> Result<std::shared_ptr<GpuBytes>> {
        PENSTOCK_TRY(calls, driver());
        PENSTOCK_TRY(context, primary_context(*calls, device));
        std::shared_ptr<GpuBytes> made(new GpuBytes(*calls, context));
        if (bytes == 0) {
            return made;
        }
        const Current current(*calls, context);
        CUdeviceptr address = 0;
        const CUresult result = current.result() == CUDA_SUCCESS
                                    ? calls->cuMemAlloc(&address, bytes)
                                    : current.result();
        if (result != CUDA_SUCCESS) {
            base::Error error = refused(*calls, result, "cuMemAlloc",
                                        fmt::format("{} of memory of GPU {} for weights",
                                                    base::format_bytes(bytes), device));
            error.message += "; ask for less device memory, or free what others have of it";
            return fail(std::move(error));
        }
        made->data_ = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
        return made;
    });
}

GpuBytes::~GpuBytes() {
    if (data_ != nullptr && may_call_driver()) {
        end_in(driver_, context_, [&] { driver_.cuMemFree(address_of(data_)); });
    }
}

Result<std::unique_ptr<PinnedBytes>> PinnedBytes::make(std::int32_t device, std::uint64_t bytes) {
    return base::as_result("stream", [&]() -> Result<std::unique_ptr<PinnedBytes>> {
        PENSTOCK_TRY(calls, driver());
        PENSTOCK_TRY(context, primary_context(*calls, device));
        std::unique_ptr<PinnedBytes> made(new PinnedBytes(*calls, context));
        if (bytes == 0) {
            return made;
        }
        // A child of a fork has not got it: it would share pages that a device reads.
        PENSTOCK_TRY(block, memory::Block::make(bytes, {.keep_on_fork = false}));
        const Current current(*calls, context);
        const CUresult result = current.result() == CUDA_SUCCESS
                                    ? pin_pages(*calls, block.data(), block.size())
                                    : current.result();
        if (result != CUDA_SUCCESS) {
            base::Error error =
                refused(*calls, result, "cuMemHostRegister",
                        fmt::format("{} of host memory could not be pinned for weights of GPU {}",
                                    base::format_bytes(bytes), device));
            const std::uint64_t limit = os::memlock_limit();
            error.message += fmt::format(
                "; ask for less host memory, or raise the limit on locked memory (RLIMIT_MEMLOCK "
                "is {}): 'ulimit -l unlimited'",
                limit == os::kUnlimited ? "unlimited" : base::format_bytes(limit));
            return fail(std::move(error));
        }
        made->block_ = std::move(block);
        made->is_pinned_ = true;
        return made;
    });
}

PinnedBytes::~PinnedBytes() {
    if (is_pinned_ && may_call_driver()) {
        end_in(driver_, context_, [&] { unpin_pages(driver_, block_.data()); });
    }
}

Result<std::unique_ptr<GpuLane>> GpuLane::make(std::int32_t device) {
    return base::as_result("stream", [&]() -> Result<std::unique_ptr<GpuLane>> {
        PENSTOCK_TRY(calls, driver());
        PENSTOCK_TRY(context, primary_context(*calls, device));
        std::unique_ptr<GpuLane> made(new GpuLane(*calls, context, device));
        const Current current(*calls, context);
        const char* call = "cuCtxPushCurrent";
        CUresult result = current.result();
        if (result == CUDA_SUCCESS) {
            call = "cuStreamCreate";
            result = calls->cuStreamCreate(&made->stream_, CU_STREAM_NON_BLOCKING);
        }
        for (CUevent* const event : {&made->theirs_, &made->ours_}) {
            if (result == CUDA_SUCCESS) {
                call = "cuEventCreate";
                result = calls->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
            }
        }
        if (result != CUDA_SUCCESS) {
            return fail(refused(*calls, result, call, fmt::format("GPU {}", device)));
        }
        return made;
    });
}

GpuLane::~GpuLane() {
    if (!may_call_driver()) {
        return;
    }
    end_in(driver_, context_, [&] {
        for (const CUevent event : {theirs_, ours_}) {
            if (event != nullptr) {
                driver_.cuEventDestroy(event);
            }
        }
        if (stream_ != nullptr) {
            driver_.cuStreamDestroy(stream_);
        }
    });
}

StreamHandle GpuLane::handle() const {
    return {.handle = reinterpret_cast<std::uintptr_t>(stream_), .device = device_};
}

Result<void> GpuLane::copy_in(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    const Current current(driver_, context_);
    const CUresult result = current.result() == CUDA_SUCCESS
                                ? driver_.cuMemcpyHtoDAsync(address_of(to), from, bytes, stream_)
                                : current.result();
    if (result != CUDA_SUCCESS) {
        return fail(refused(driver_, result, "cuMemcpyHtoDAsync",
                            fmt::format("a copy of weights to the memory of GPU {}", device_)));
    }
    return {};
}

Result<void> GpuLane::wait_for(const StreamHandle& stream) {
    return order(reinterpret_cast<CUstream>(stream.handle), stream_, theirs_, stream);
}

Result<void> GpuLane::hold_up(const StreamHandle& stream) {
    return order(stream_, reinterpret_cast<CUstream>(stream.handle), ours_, stream);
}

// A wait is for what the event recorded last by then, so that an event serves again and again.
Result<void> GpuLane::order(CUstream first, CUstream second, CUevent event,
                            const StreamHandle& stream) {
    const Current current(driver_, context_);
    const char* call = "cuCtxPushCurrent";
    CUresult result = current.result();
    if (result == CUDA_SUCCESS) {
        call = "cuEventRecord";
        result = driver_.cuEventRecord(event, first);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuStreamWaitEvent";
        result = driver_.cuStreamWaitEvent(second, event, CU_EVENT_WAIT_DEFAULT);
    }
    if (result != CUDA_SUCCESS) {
        return fail(refused(driver_, result, call,
                            fmt::format("the order of weights and stream 0x{:x} of GPU {}",
                                        stream.handle, device_)));
    }
    return {};
}

bool GpuLane::wait_until_idle(std::int64_t nanoseconds) noexcept {
    if (!may_call_driver()) {
        return false;
    }
    const base::SteadyClock clock;
    const base::Nanos end = clock.now() + nanoseconds;
    for (;;) {
        const Current current(driver_, context_);
        const CUresult result =
            current.result() == CUDA_SUCCESS ? driver_.cuStreamQuery(stream_) : current.result();
        if (result != CUDA_ERROR_NOT_READY || clock.now() > end) {
            return result == CUDA_SUCCESS;
        }
        const timespec nap{0, kNap};
        ::nanosleep(&nap, nullptr);
    }
}

}  // namespace penstock::device
