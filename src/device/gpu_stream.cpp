// SPDX-License-Identifier: Apache-2.0
#include "base/assert.hpp"
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/owned.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <time.h>

#include <utility>

namespace penstock {

using base::fail;
using base::Result;
using device::CallResult;
using device::Current;
using namespace device::cuda;  // NVIDIA's names, as in its documents

/// A stream and the events of its order with others. A wait is for what an event recorded last by
/// then, so that two events serve again and again.
struct GpuStream::Impl {
    device::GpuContext gpu;
    device::Stream stream;
    device::Event theirs;  ///< recorded on streams of the caller's
    device::Event ours;    ///< recorded on ours
};

namespace {

constexpr std::int64_t kNap = 20'000;  // nanoseconds

CUdeviceptr address_of(const std::byte* memory) {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
}

template <typename Impl>
Impl& impl_of(const std::unique_ptr<Impl>& impl) {
    if (impl == nullptr) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "gpu",
                                "this stream is of no GPU: it was moved from, or made without one; "
                                "make GpuStream(device)"));
    }
    return *impl;
}

template <typename Impl>
Result<void> make_all(Impl& made, std::int32_t device) {
    PENSTOCK_TRY(gpu, device::gpu_context(device));
    made.gpu = gpu;
    const Current current(gpu);
    CallResult call = made.stream.make_in(current);
    for (device::Event* const event : {&made.theirs, &made.ours}) {
        if (call.ok()) {
            call = event->make_in(current);
        }
    }
    PENSTOCK_ASSERT(!call.ok() || !made.stream.empty());
    return call.ok() ? Result<void>() : fail(device::object_refused(current, call, device));
}

// Puts what comes on `second` behind what `first` holds now.
Result<void> order(const device::GpuContext& gpu, CUstream first, CUstream second, CUevent event,
                   const StreamHandle& stream) {
    const Current current(gpu);
    const char* call = "cuCtxPushCurrent";
    CUresult result = current.result();
    if (result == CUDA_SUCCESS) {
        call = "cuEventRecord";
        result = gpu.driver->cuEventRecord(event, first);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuStreamWaitEvent";
        result = gpu.driver->cuStreamWaitEvent(second, event, CU_EVENT_WAIT_DEFAULT);
    }
    if (result != CUDA_SUCCESS) {
        return fail(
            device::cuda_error(*gpu.driver, result, call, "gpu",
                               fmt::format("the order of our stream and stream 0x{:x} of GPU {}",
                                           stream.handle, gpu.device)));
    }
    return {};
}

CUresult put_on(const device::Driver& driver, CUstream stream, const MemoryCopy& copy) {
    return copy.to.kind == MemoryKind::kDevice
               ? driver.cuMemcpyHtoDAsync(address_of(copy.to.data), copy.from.data, copy.to.bytes,
                                          stream)
               : driver.cuMemcpyDtoHAsync(copy.to.data, address_of(copy.from.data), copy.to.bytes,
                                          stream);
}

void check(const MemoryCopy& copy, std::int32_t device) {
    const bool to_gpu = copy.to.kind == MemoryKind::kDevice;
    const bool from_gpu = copy.from.kind == MemoryKind::kDevice;
    if (copy.to.bytes != copy.from.bytes || to_gpu == from_gpu ||
        (to_gpu ? copy.to.device : copy.from.device) != device) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, "gpu",
            fmt::format("a copy on a stream of GPU {} has as many bytes on both sides, one of that "
                        "GPU and one of the host",
                        device)));
    }
}

}  // namespace

GpuStream::GpuStream() noexcept = default;
GpuStream::GpuStream(std::int32_t device) : impl_(std::make_unique<Impl>()) {
    base::unwrap(make_all(*impl_, device));
}
GpuStream::GpuStream(GpuStream&& other) noexcept = default;
GpuStream& GpuStream::operator=(GpuStream&& other) noexcept = default;
GpuStream::~GpuStream() = default;

StreamHandle GpuStream::handle() const {
    const Impl& its = impl_of(impl_);
    return {.handle = reinterpret_cast<std::uintptr_t>(its.stream.get()), .device = its.gpu.device};
}

void GpuStream::copy_in(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    const MemoryCopy one{{to, bytes, MemoryKind::kDevice, impl_of(impl_).gpu.device},
                         {from, bytes}};
    copy({&one, 1});
}

void GpuStream::copy(std::span<const MemoryCopy> copies) {
    const Impl& its = impl_of(impl_);
    for (const MemoryCopy& one : copies) {
        check(one, its.gpu.device);
    }
    const Current current(its.gpu);
    const char* call = "cuCtxPushCurrent";
    CUresult result = current.result();
    bool to_gpu = true;
    for (std::size_t i = 0; i < copies.size() && result == CUDA_SUCCESS; ++i) {
        if (copies[i].to.bytes != 0) {
            to_gpu = copies[i].to.kind == MemoryKind::kDevice;
            call = to_gpu ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync";
            result = put_on(*its.gpu.driver, its.stream.get(), copies[i]);
        }
    }
    if (result != CUDA_SUCCESS) {
        base::raise(device::cuda_error(
            *its.gpu.driver, result, call, "gpu",
            fmt::format("a copy {} the memory of GPU {}", to_gpu ? "to" : "from", its.gpu.device)));
    }
}

void GpuStream::wait_for(const StreamHandle& stream) {
    const Impl& its = impl_of(impl_);
    base::unwrap(order(its.gpu, reinterpret_cast<CUstream>(stream.handle), its.stream.get(),
                       its.theirs.get(), stream));
}

void GpuStream::hold_up(const StreamHandle& stream) {
    const Impl& its = impl_of(impl_);
    base::unwrap(order(its.gpu, its.stream.get(), reinterpret_cast<CUstream>(stream.handle),
                       its.ours.get(), stream));
}

bool GpuStream::wait_until_idle(std::chrono::nanoseconds limit) noexcept {
    if (impl_ == nullptr) {
        return true;
    }
    if (!device::may_call_driver()) {
        return false;
    }
    const base::SteadyClock clock;
    const base::Nanos begin = clock.now();
    for (;;) {
        const Current current(impl_->gpu);
        const CUresult result = current.result() == CUDA_SUCCESS
                                    ? impl_->gpu.driver->cuStreamQuery(impl_->stream.get())
                                    : current.result();
        if (result != CUDA_ERROR_NOT_READY || clock.now() - begin > limit.count()) {
            return result == CUDA_SUCCESS;
        }
        const timespec nap{0, kNap};
        ::nanosleep(&nap, nullptr);
    }
}

}  // namespace penstock
