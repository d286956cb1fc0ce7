// SPDX-License-Identifier: Apache-2.0
#include "device/launch.hpp"

#include "base/assert.hpp"
#include "base/clock.hpp"
#include "base/text/units.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/pinned_pages.hpp"
#include "device/mover/stream_order.hpp"
#include "kernels/kept_ptx.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

// Warps of a launch, at most: some 32 for each processor of the largest GPUs.
constexpr std::uint64_t kWarpsMax = 16384;
constexpr base::Nanos kLookAgain = 20'000;
// The end of a launch waits so long; a GPU that takes longer does not answer any more.
constexpr std::chrono::seconds kPatience(10);

struct Loaded {
    std::mutex mutex;
    std::map<std::tuple<CUcontext, std::string, std::string>, CUfunction> functions;
};

// A child of a fork never comes here: there driver() has failed before.
Loaded& loaded() {
    static auto& kept = *new Loaded;  // never destroyed, as CUDA's objects outlive the process
    return kept;
}

std::string gpu_name(std::int32_t device) {
    return fmt::format("GPU {}", device);
}

base::Error not_loaded(const Driver& driver, CUresult result, std::string_view call,
                       std::int32_t device, std::string_view name) {
    base::Error error = cuda_error(driver, result, call, "gpu",
                                   fmt::format("the kernel {} of {}", name, gpu_name(device)));
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_PTX ||
        result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
        error.code = ErrorCode::kUnsupported;
        error.message +=
            "; kernels are for GPUs of compute capability 7.5 (Turing) or later and drivers of "
            "CUDA 12.0 or later: gather into host memory and copy";
    }
    return error;
}

}  // namespace

Result<CUfunction> kernel(const Driver& driver, std::int32_t device, const char* file,
                          const char* name) {
    return base::as_result("gpu", [&]() -> Result<CUfunction> {
        PENSTOCK_TRY(context, primary_context(driver, device));
        Loaded& all = loaded();
        const std::lock_guard lock(all.mutex);
        const auto key = std::make_tuple(context, std::string(file), std::string(name));
        if (const auto known = all.functions.find(key); known != all.functions.end()) {
            return known->second;
        }
        const char* const ptx = kernels::kept_ptx(file);
        PENSTOCK_ASSERT(ptx != nullptr);
        const Current current(driver, context);
        CUmodule module = nullptr;
        CUfunction function = nullptr;
        CUresult result = current.result();
        const char* call = "cuCtxPushCurrent";
        if (result == CUDA_SUCCESS) {
            call = "cuModuleLoadData";
            result = driver.cuModuleLoadData(&module, ptx);
        }
        if (result == CUDA_SUCCESS) {
            call = "cuModuleGetFunction";
            result = driver.cuModuleGetFunction(&function, module, name);
            if (result != CUDA_SUCCESS) {
                driver.cuModuleUnload(module);
            }
        }
        if (result != CUDA_SUCCESS) {
            return fail(not_loaded(driver, result, call, device, name));
        }
        all.functions.emplace(key, function);
        return function;
    });
}

DeviceBlock::DeviceBlock(DeviceBlock&& other) noexcept
    : memory_(std::exchange(other.memory_, Memory())) {}

DeviceBlock& DeviceBlock::operator=(DeviceBlock&& other) noexcept {
    if (this != &other) {
        free();
        memory_ = std::exchange(other.memory_, Memory());
    }
    return *this;
}

std::uint64_t DeviceBlock::address() const {
    return reinterpret_cast<std::uintptr_t>(memory_.data);
}

Result<DeviceBlock> DeviceBlock::make(std::int32_t device, std::uint64_t bytes) {
    PENSTOCK_TRY(calls, driver());
    PENSTOCK_TRY(context, primary_context(*calls, device));
    const Current current(*calls, context);
    CUdeviceptr made = 0;
    CUresult result = current.result();
    if (result == CUDA_SUCCESS) {
        result = calls->cuMemAlloc(&made, bytes);
    }
    if (result != CUDA_SUCCESS) {
        return fail(cuda_error(
            *calls, result, "cuMemAlloc", "gpu",
            fmt::format("{} of memory of {}", base::format_bytes(bytes), gpu_name(device))));
    }
    DeviceBlock block;
    block.memory_ = {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(made)), bytes,
                     MemoryKind::kDevice, device};
    return block;
}

void DeviceBlock::free() noexcept {
    const Driver* const calls = loaded_driver();
    if (memory_.data == nullptr || calls == nullptr || !may_call_driver()) {
        return;
    }
    if (const auto context = primary_context(*calls, memory_.device)) {
        const Current current(*calls, *context);
        calls->cuMemFree(address());
    }
    memory_ = {};
}

PinnedRange::PinnedRange(PinnedRange&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      address_(other.address_),
      device_(other.device_) {}

PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
    if (this != &other) {
        unpin();
        memory_ = std::exchange(other.memory_, nullptr);
        address_ = other.address_;
        device_ = other.device_;
    }
    return *this;
}

Result<PinnedRange> PinnedRange::make(std::int32_t device, std::byte* memory, std::uint64_t bytes) {
    PENSTOCK_TRY(calls, driver());
    PENSTOCK_TRY(context, primary_context(*calls, device));
    const Current current(*calls, context);
    CUresult result = current.result();
    const char* call = "cuCtxPushCurrent";
    CUdeviceptr address = 0;
    if (result == CUDA_SUCCESS) {
        call = "cuMemHostRegister";
        result = pin_pages(*calls, memory, bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuMemHostGetDevicePointer";
        result = calls->cuMemHostGetDevicePointer(&address, memory, 0);
        if (result != CUDA_SUCCESS) {
            unpin_pages(*calls, memory);
        }
    }
    if (result != CUDA_SUCCESS) {
        base::Error error = cuda_error(*calls, result, call, "gpu",
                                       fmt::format("{} of host memory could not be pinned for {}",
                                                   base::format_bytes(bytes), gpu_name(device)));
        error.message +=
            "; ask for less memory for rows, or raise the limit on locked memory "
            "(ulimit -l)";
        return fail(std::move(error));
    }
    PinnedRange made;
    made.memory_ = memory;
    made.address_ = address;
    made.device_ = device;
    return made;
}

void PinnedRange::unpin() noexcept {
    const Driver* const calls = loaded_driver();
    if (memory_ == nullptr || calls == nullptr || !may_call_driver()) {
        return;
    }
    if (const auto context = primary_context(*calls, device_)) {
        end_in(*calls, *context, [&] { unpin_pages(*calls, memory_); });
    }
    memory_ = nullptr;
}

RowLaunch::RowLaunch(const Driver& driver, CUcontext context, std::int32_t device)
    : driver_(driver), context_(context), device_(device) {}

std::uint64_t RowLaunch::entries(std::uint64_t rows, std::uint64_t row_bytes) {
    return rows * ((row_bytes + kernels::kPieceBytes - 1) / kernels::kPieceBytes);
}

Result<std::unique_ptr<RowLaunch>> RowLaunch::make(std::int32_t device, std::uint64_t entries) {
    return base::as_result("gpu", [&]() -> Result<std::unique_ptr<RowLaunch>> {
        PENSTOCK_TRY(calls, driver());
        PENSTOCK_TRY(context, primary_context(*calls, device));
        std::unique_ptr<RowLaunch> made(new RowLaunch(*calls, context, device));
        PENSTOCK_TRY(function, kernel(*calls, device, "copy_rows", "penstock_copy_rows"));
        made->function_ = function;
        made->room_ = entries;
        const Current current(*calls, context);
        CUresult result = current.result();
        const char* call = "cuCtxPushCurrent";
        if (result == CUDA_SUCCESS) {
            call = "cuMemHostAlloc";
            void* list = nullptr;
            result = calls->cuMemHostAlloc(&list, made->room_ * sizeof(kernels::RowCopy),
                                           CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
            made->rows_ = static_cast<kernels::RowCopy*>(list);
        }
        if (result == CUDA_SUCCESS) {
            call = "cuEventCreate";
            result = calls->cuEventCreate(&made->event_, CU_EVENT_DISABLE_TIMING);
        }
        if (result != CUDA_SUCCESS) {
            return fail(cuda_error(*calls, result, call, "gpu",
                                   fmt::format("putting rows together on {}", gpu_name(device))));
        }
        return made;
    });
}

RowLaunch::~RowLaunch() {
    if (!may_call_driver()) {
        return;
    }
    if (queued_ && wait(kPatience) == State::kRunning) {
        return;  // the list stays where it is
    }
    end_in(driver_, context_, [&] {
        if (event_ != nullptr) {
            driver_.cuEventDestroy(event_);
        }
        if (rows_ != nullptr) {
            driver_.cuMemFreeHost(rows_);
        }
    });
}

void RowLaunch::add(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += kernels::kPieceBytes) {
        PENSTOCK_ASSERT(count_ < room_);
        rows_[count_++] = {from + at, to + at, std::min(kernels::kPieceBytes, bytes - at)};
    }
}

void RowLaunch::reset() {
    PENSTOCK_ASSERT(!queued_);
    count_ = 0;
    recorded_ = false;
    result_ = CUDA_SUCCESS;
}

Result<void> RowLaunch::check(const StreamHandle& stream) const {
    auto* const handle = reinterpret_cast<CUstream>(stream.handle);
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = CUDA_SUCCESS;
    const char* call = "cuStreamGetCtx";
    if (stream.handle > CU_STREAM_PER_THREAD) {
        CUcontext its = nullptr;
        result = driver_.cuStreamGetCtx(handle, &its);
        if (result == CUDA_SUCCESS && its != context_) {
            return fail(base::error(
                ErrorCode::kInvalidArgument, "gpu",
                fmt::format("stream 0x{:x} is not of the primary context of GPU {}, where the rows "
                            "are put together; give a stream of that GPU (torch's all are of its "
                            "primary context)",
                            stream.handle, device_)));
        }
    }
    if (result == CUDA_SUCCESS) {
        call = "cuStreamIsCapturing";
        result = driver_.cuStreamIsCapturing(handle, &capture);
    }
    if (result != CUDA_SUCCESS) {
        PENSTOCK_CHECK(check_stream(stream));
        return fail(
            cuda_error(driver_, result, call, "gpu", fmt::format("stream 0x{:x}", stream.handle)));
    }
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
        return fail(base::error(
            ErrorCode::kInvalidArgument, "gpu",
            fmt::format("stream 0x{:x} takes part in the capture of a CUDA graph, which no gather "
                        "can be a part of; gather before the capture or after it",
                        stream.handle)));
    }
    return {};
}

Result<void> RowLaunch::start(const StreamHandle& stream) {
    const Current current(driver_, context_);
    if (current.result() != CUDA_SUCCESS) {
        return fail(cuda_error(driver_, current.result(), "cuCtxPushCurrent", "gpu", {}));
    }
    PENSTOCK_CHECK(check(stream));
    auto* const handle = reinterpret_cast<CUstream>(stream.handle);
    CUdeviceptr list = 0;
    const char* call = "cuMemHostGetDevicePointer";
    CUresult result = driver_.cuMemHostGetDevicePointer(&list, rows_, 0);
    if (result == CUDA_SUCCESS) {
        const std::uint64_t threads = std::min(count_, kWarpsMax) * kernels::kWarp;
        const auto blocks =
            static_cast<unsigned>((threads + kernels::kBlock - 1) / kernels::kBlock);
        std::uint64_t rows = list;
        void* parameters[] = {&rows, &count_};
        call = "cuLaunchKernel";
        result = driver_.cuLaunchKernel(function_, blocks, 1, 1, kernels::kBlock, 1, 1, 0, handle,
                                        parameters, nullptr);
    }
    if (result == CUDA_SUCCESS) {
        queued_ = true;
        stream_ = handle;
        call = "cuEventRecord";
        result = driver_.cuEventRecord(event_, handle);
        recorded_ = result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS) {
        result_ = result;
        return fail(cuda_error(driver_, result, call, "gpu",
                               fmt::format("putting rows together on {}", gpu_name(device_))));
    }
    return {};
}

// Without an event the stream is asked.
RowLaunch::State RowLaunch::state() noexcept {
    if (!queued_) {
        return result_ == CUDA_SUCCESS ? State::kDone : State::kFailed;
    }
    const Current current(driver_, context_);
    CUresult result = current.result();
    if (result == CUDA_SUCCESS) {
        result = recorded_ ? driver_.cuEventQuery(event_) : driver_.cuStreamQuery(stream_);
    }
    if (result == CUDA_ERROR_NOT_READY) {
        return State::kRunning;
    }
    queued_ = false;
    result_ = result;
    return result == CUDA_SUCCESS ? State::kDone : State::kFailed;
}

RowLaunch::State RowLaunch::wait(std::chrono::nanoseconds limit) noexcept {
    const base::SteadyClock clock;
    const base::Nanos begin = clock.now();
    for (;;) {
        const State now = state();
        if (now != State::kRunning || clock.now() - begin >= limit.count()) {
            return now;
        }
        const timespec nap{0, kLookAgain};
        ::nanosleep(&nap, nullptr);
    }
}

base::Error RowLaunch::error() const noexcept {
    return cuda_error(driver_, result_, "cuEventQuery", "gpu", "putting rows together on the GPU");
}

}  // namespace penstock::device
