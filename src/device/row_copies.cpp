// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/kernel.hpp"
#include "device/cuda/owned.hpp"
#include "device/mover/stream_order.hpp"
#include "kernels/copy_rows.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <utility>

namespace penstock {

using base::fail;
using base::Result;
using device::CallResult;
using device::Current;
using namespace device::cuda;  // NVIDIA's names, as in its documents

namespace {

// Warps of a launch, at most: some 32 for each processor of the largest GPUs.
constexpr std::uint64_t kWarpsMax = 16384;
constexpr base::Nanos kLookAgain = 20'000;
// The end of a launch waits so long; a GPU that takes longer does not answer any more.
constexpr std::chrono::seconds kPatience(10);

[[noreturn]] void refuse(const char* why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "gpu", why));
}

}  // namespace

/// A list of rows, the kernel that copies them, and an event after it.
class RowCopies::Impl {
public:
    Impl(device::GpuContext gpu, CUfunction function, std::uint64_t room)
        : gpu_(gpu), function_(function), room_(room) {}
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl() {
        if (queued_ && device::may_call_driver() && wait(kPatience) == State::kRunning) {
            list_.leave();  // the GPU may still read it
            event_.leave();
        }
    }

    [[nodiscard]] static Result<std::unique_ptr<Impl>> make(std::int32_t device,
                                                            std::uint64_t pieces);
    [[nodiscard]] std::uint64_t room() const { return room_; }
    [[nodiscard]] std::uint64_t size() const { return count_; }
    void add(std::uint64_t from, std::uint64_t to, std::uint64_t bytes);
    [[nodiscard]] Result<void> start(const StreamHandle& stream);
    [[nodiscard]] State state() noexcept;
    [[nodiscard]] State wait(std::chrono::nanoseconds limit) noexcept;
    [[nodiscard]] std::exception_ptr error() const noexcept;
    void reset();

private:
    [[nodiscard]] Result<void> check(const StreamHandle& stream) const;
    [[nodiscard]] base::Error failed(CUresult result, const char* call) const {
        return device::cuda_error(*gpu_.driver, result, call, "gpu",
                                  fmt::format("putting rows together on GPU {}", gpu_.device));
    }
    [[nodiscard]] kernels::RowCopy* rows() const {
        return reinterpret_cast<kernels::RowCopy*>(list_.data());
    }

    device::GpuContext gpu_;
    CUfunction function_;
    device::PinnedBlock list_;
    device::Event event_;
    CUstream stream_ = nullptr;
    std::uint64_t room_;
    std::uint64_t count_ = 0;
    bool started_ = false;
    bool queued_ = false;    ///< the GPU may be reading the list
    bool recorded_ = false;  ///< the event says when it is not
    CUresult result_ = CUDA_SUCCESS;
};

Result<std::unique_ptr<RowCopies::Impl>> RowCopies::Impl::make(std::int32_t device,
                                                               std::uint64_t pieces) {
    return base::as_result("gpu", [&]() -> Result<std::unique_ptr<Impl>> {
        PENSTOCK_TRY(gpu, device::gpu_context(device));
        PENSTOCK_TRY(function,
                     device::kernel(*gpu.driver, device, "copy_rows", "penstock_copy_rows"));
        auto made = std::make_unique<Impl>(gpu, function, pieces);
        if (pieces != 0) {
            const auto bytes = base::checked_multiply(pieces, sizeof(kernels::RowCopy));
            if (!bytes) {
                return fail(base::out_of_memory("gpu"));
            }
            PENSTOCK_TRY(list, device::PinnedBlock::make(device, *bytes));
            made->list_ = std::move(list);
        }
        const Current current(gpu);
        if (const CallResult event = made->event_.make_in(current); !event.ok()) {
            return fail(device::object_refused(current, event, device));
        }
        return made;
    });
}

void RowCopies::Impl::add(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    if (started_) {
        refuse("these rows are started already; reset() comes before the next");
    }
    const std::uint64_t its = pieces(1, bytes);
    if (its > room_ - count_) {
        refuse("there is no room for another row; make RowCopies with more pieces");
    }
    kernels::RowCopy* next = rows() + count_;
    for (std::uint64_t at = 0; at < bytes; at += kernels::kPieceBytes) {
        *next++ = {from + at, to + at, std::min(kernels::kPieceBytes, bytes - at)};
    }
    count_ += its;
}

void RowCopies::Impl::reset() {
    if (queued_) {
        refuse("these rows are being copied; wait() until they are done");
    }
    count_ = 0;
    started_ = false;
    recorded_ = false;
    result_ = CUDA_SUCCESS;
}

Result<void> RowCopies::Impl::check(const StreamHandle& stream) const {
    auto* const handle = reinterpret_cast<CUstream>(stream.handle);
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = CUDA_SUCCESS;
    const char* call = "cuStreamGetCtx";
    if (stream.handle > CU_STREAM_PER_THREAD) {
        CUcontext its = nullptr;
        result = gpu_.driver->cuStreamGetCtx(handle, &its);
        if (result == CUDA_SUCCESS && its != gpu_.context) {
            return fail(base::error(
                ErrorCode::kInvalidArgument, "gpu",
                fmt::format("stream 0x{:x} is not of the primary context of GPU {}, where the rows "
                            "are put together; give a stream of that GPU (torch's all are of its "
                            "primary context)",
                            stream.handle, gpu_.device)));
        }
    }
    if (result == CUDA_SUCCESS) {
        call = "cuStreamIsCapturing";
        result = gpu_.driver->cuStreamIsCapturing(handle, &capture);
    }
    if (result != CUDA_SUCCESS) {
        PENSTOCK_CHECK(device::check_stream(stream));
        return fail(device::cuda_error(*gpu_.driver, result, call, "gpu",
                                       fmt::format("stream 0x{:x}", stream.handle)));
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

Result<void> RowCopies::Impl::start(const StreamHandle& stream) {
    if (started_) {
        return fail(base::error(ErrorCode::kInvalidArgument, "gpu",
                                "these rows are started already; reset() comes before the next"));
    }
    const Current current(gpu_);
    if (current.result() != CUDA_SUCCESS) {
        return fail(failed(current.result(), "cuCtxPushCurrent"));
    }
    PENSTOCK_CHECK(check(stream));
    PENSTOCK_ASSERT(count_ <= room_ && !queued_);
    started_ = true;
    if (count_ == 0) {
        return {};
    }
    auto* const handle = reinterpret_cast<CUstream>(stream.handle);
    const std::uint64_t threads = std::min(count_, kWarpsMax) * kernels::kWarp;
    const auto blocks = static_cast<unsigned>((threads + kernels::kBlock - 1) / kernels::kBlock);
    std::uint64_t list = list_.address();
    void* parameters[] = {&list, &count_};
    const char* call = "cuLaunchKernel";
    CUresult result = gpu_.driver->cuLaunchKernel(function_, blocks, 1, 1, kernels::kBlock, 1, 1, 0,
                                                  handle, parameters, nullptr);
    if (result == CUDA_SUCCESS) {
        queued_ = true;
        stream_ = handle;
        call = "cuEventRecord";
        result = gpu_.driver->cuEventRecord(event_.get(), handle);
        recorded_ = result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS) {
        result_ = result;
        return fail(failed(result, call));
    }
    return {};
}

// Without an event the stream is asked.
RowCopies::State RowCopies::Impl::state() noexcept {
    if (!queued_) {
        return result_ == CUDA_SUCCESS ? State::kDone : State::kFailed;
    }
    const Current current(gpu_);
    CUresult result = current.result();
    if (result == CUDA_SUCCESS) {
        result = recorded_ ? gpu_.driver->cuEventQuery(event_.get())
                           : gpu_.driver->cuStreamQuery(stream_);
    }
    if (result == CUDA_ERROR_NOT_READY) {
        return State::kRunning;
    }
    queued_ = false;
    result_ = result;
    return result == CUDA_SUCCESS ? State::kDone : State::kFailed;
}

RowCopies::State RowCopies::Impl::wait(std::chrono::nanoseconds limit) noexcept {
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

std::exception_ptr RowCopies::Impl::error() const noexcept {
    if (queued_ || result_ == CUDA_SUCCESS) {
        return nullptr;
    }
    try {
        base::raise(device::cuda_error(*gpu_.driver, result_, "cuEventQuery", "gpu",
                                       "putting rows together on the GPU"));
    } catch (...) {
        return std::current_exception();
    }
}

namespace {

template <typename Impl>
Impl& impl_of(const std::unique_ptr<Impl>& impl) {
    if (impl == nullptr) {
        refuse(
            "these row copies are of no GPU: they were moved from, or made without one; make "
            "RowCopies(device, pieces)");
    }
    return *impl;
}

}  // namespace

std::uint64_t RowCopies::pieces(std::uint64_t rows, std::uint64_t row_bytes) noexcept {
    const std::uint64_t of_a_row =
        row_bytes / kernels::kPieceBytes + (row_bytes % kernels::kPieceBytes != 0 ? 1 : 0);
    return base::checked_multiply(rows, of_a_row).value_or(UINT64_MAX);
}

RowCopies::RowCopies() noexcept = default;
RowCopies::RowCopies(std::int32_t device, std::uint64_t pieces)
    : impl_(base::unwrap(Impl::make(device, pieces))) {}
RowCopies::RowCopies(RowCopies&& other) noexcept = default;
RowCopies& RowCopies::operator=(RowCopies&& other) noexcept = default;
RowCopies::~RowCopies() = default;

std::uint64_t RowCopies::room() const noexcept {
    return impl_ == nullptr ? 0 : impl_->room();
}

std::uint64_t RowCopies::size() const noexcept {
    return impl_ == nullptr ? 0 : impl_->size();
}

void RowCopies::add(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    impl_of(impl_).add(from, to, bytes);
}

void RowCopies::start(const StreamHandle& stream) {
    base::unwrap(impl_of(impl_).start(stream));
}

RowCopies::State RowCopies::state() noexcept {
    return impl_ == nullptr ? State::kDone : impl_->state();
}

RowCopies::State RowCopies::wait(std::chrono::nanoseconds limit) noexcept {
    return impl_ == nullptr ? State::kDone : impl_->wait(limit);
}

std::exception_ptr RowCopies::error() const noexcept {
    return impl_ == nullptr ? nullptr : impl_->error();
}

void RowCopies::reset() {
    impl_of(impl_).reset();
}

}  // namespace penstock
