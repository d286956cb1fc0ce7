// SPDX-License-Identifier: Apache-2.0
#include "device/mover/stream_order.hpp"

#include "base/align.hpp"
#include "device/cuda/context.hpp"
#include "device/mover/copy_streams.hpp"

#include <fmt/format.h>

#include <utility>

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

bool is_default(const StreamHandle& stream) {
    return stream.handle == 0 || stream.handle == CU_STREAM_LEGACY ||
           stream.handle == CU_STREAM_PER_THREAD;
}

std::string name_of(const StreamHandle& stream) {
    if (is_default(stream)) {
        return fmt::format("the default stream of GPU {}", stream.device);
    }
    return fmt::format("stream 0x{:x}", stream.handle);
}

bool is_capture(CUresult result) {
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT;
}

base::Error refused(const Driver& driver, const StreamHandle& stream, CUresult result,
                    std::string_view call) {
    if (is_capture(result)) {
        return base::error(
            ErrorCode::kInvalidArgument, "gpu",
            fmt::format("{} takes part in the capture of a CUDA graph, which no transfer can be a "
                        "part of; start or join the transfer before the capture or after it",
                        name_of(stream)));
    }
    base::Error error = cuda_error(driver, result, call, "gpu", name_of(stream));
    if (!is_default(stream) &&
        (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE ||
         result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_CONTEXT)) {
        error.code = ErrorCode::kInvalidArgument;
        error.message = fmt::format(
            "{} is no stream of CUDA's, or was destroyed ({} answered {}); give the handle of a "
            "stream that exists (torch: stream.cuda_stream)",
            name_of(stream), call, static_cast<unsigned int>(result));
    }
    return error;
}

// NVIDIA's driver reads at the address that a handle is, whatever it is.
bool may_be_a_stream(const StreamHandle& stream) {
    return stream.handle >= base::kPageBytes && base::is_aligned(stream.handle, alignof(void*));
}

Result<CUcontext> context_of(const Driver& driver, const StreamHandle& stream) {
    if (is_default(stream)) {
        return primary_context(driver, stream.device);
    }
    CUcontext context = nullptr;
    const CUresult result =
        may_be_a_stream(stream)
            ? driver.cuStreamGetCtx(reinterpret_cast<CUstream>(stream.handle), &context)
            : CUDA_ERROR_INVALID_HANDLE;
    if (result != CUDA_SUCCESS) {
        return fail(refused(driver, stream, result, "cuStreamGetCtx"));
    }
    return context;
}

/// With the stream's context current; an error of captures where it is part of one.
CUresult capture_of(const Driver& driver, CUstream stream) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver.cuStreamIsCapturing(stream, &capture);
    return result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE
               ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
               : result;
}

/// False where the driver refuses a call that has nothing to do with the stream.
Result<bool> hold_up_one(const Driver& driver, const StreamHandle& stream,
                         std::span<const engine::MemoryPlace> devices, engine::MoveTo to) {
    auto* handle = reinterpret_cast<CUstream>(stream.handle);
    PENSTOCK_TRY(context, context_of(driver, stream));
    const Current current(driver, context);
    if (current.result() != CUDA_SUCCESS) {
        return fail(refused(driver, stream, current.result(), "cuCtxPushCurrent"));
    }
    if (const CUresult result = capture_of(driver, handle); result != CUDA_SUCCESS) {
        return fail(refused(driver, stream, result, "cuStreamIsCapturing"));
    }
    CopyMarks marks(driver);
    return marks.record(devices, to) && marks.hold_up(handle) == CUDA_SUCCESS;
}

}  // namespace

StreamOrder::StreamOrder(const Driver& driver) : driver_(driver) {}

Result<void> StreamOrder::add(const StreamHandle& stream) {
    auto* handle = reinterpret_cast<CUstream>(stream.handle);
    PENSTOCK_TRY(context, context_of(driver_, stream));
    events_.reserve(events_.size() + 1);
    const Current current(driver_, context);
    Event event;
    CUresult result = current.result();
    const char* call = "cuCtxPushCurrent";
    if (result == CUDA_SUCCESS) {
        call = "cuStreamIsCapturing";
        result = capture_of(driver_, handle);
    }
    if (result == CUDA_SUCCESS) {
        const CallResult made = event.make_in(current);
        call = made.call;
        result = made.result;
    }
    if (result != CUDA_SUCCESS) {
        return fail(refused(driver_, stream, result, call));
    }
    call = "cuEventRecord";
    result = driver_.cuEventRecord(event.get(), handle);
    if (result == CUDA_SUCCESS) {
        call = "cuEventQuery";
        result = driver_.cuEventQuery(event.get());
        if (result == CUDA_ERROR_NOT_READY) {
            events_.push_back(std::move(event));
            return {};
        }
    }
    event.end(current);  // it has passed, or says nothing
    return result == CUDA_SUCCESS ? Result<void>{} : fail(refused(driver_, stream, result, call));
}

Result<bool> StreamOrder::passed() const {
    if (passed_.load(std::memory_order_acquire)) {
        return true;
    }
    for (const Event& event : events_) {
        const Current current(driver_, event.context());
        const bool asked = current.result() == CUDA_SUCCESS;
        const CUresult result = asked ? driver_.cuEventQuery(event.get()) : current.result();
        if (result == CUDA_ERROR_NOT_READY) {
            return false;
        }
        if (result != CUDA_SUCCESS) {
            return fail(cuda_error(driver_, result, asked ? "cuEventQuery" : "cuCtxPushCurrent",
                                   "gpu", "the work of a stream that the transfer begins after"));
        }
    }
    passed_.store(true, std::memory_order_release);
    return true;
}

bool have_passed(const Driver& driver, std::span<const StreamHandle> streams, std::int32_t device,
                 CUcontext context, CUevent event) {
    const StreamHandle standard{.device = device};
    for (const StreamHandle& given : streams.empty() ? std::span(&standard, 1) : streams) {
        StreamHandle stream = given;
        if (is_default(stream) && stream.device < 0) {
            stream.device = device;
        }
        const auto its = context_of(driver, stream);
        if (!its || *its != context) {
            return false;  // the event is not of that context
        }
        const Current current(driver, context);
        auto* handle = reinterpret_cast<CUstream>(stream.handle);
        if (current.result() != CUDA_SUCCESS || capture_of(driver, handle) != CUDA_SUCCESS ||
            driver.cuEventRecord(event, handle) != CUDA_SUCCESS ||
            driver.cuEventQuery(event) != CUDA_SUCCESS) {
            return false;
        }
    }
    return true;
}

Result<void> check_stream(const StreamHandle& stream) {
    return base::as_result("gpu", [&]() -> Result<void> {
        const Driver* const calls = loaded_driver();
        if (calls == nullptr) {
            return {};
        }
        if (is_default(stream)) {
            if (stream.device >= 0) {
                PENSTOCK_CHECK(primary_context(*calls, stream.device));
            }
            return {};
        }
        PENSTOCK_CHECK(context_of(*calls, stream));
        return {};
    });
}

Result<bool> hold_up(const StreamHandle& stream, std::span<const engine::MemoryPlace> devices,
                     engine::MoveTo to) {
    return base::as_result("gpu", [&]() -> Result<bool> {
        const Driver* const calls = loaded_driver();
        if (calls == nullptr || !may_call_driver()) {
            return false;
        }
        if (!is_default(stream) || stream.device >= 0) {
            return hold_up_one(*calls, stream, devices, to);
        }
        for (const engine::MemoryPlace& place : devices) {
            if (place.kind == MemoryKind::kDevice) {
                PENSTOCK_TRY(held, hold_up_one(*calls, {stream.handle, place.device}, devices, to));
                if (!held) {
                    return false;
                }
            }
        }
        return true;
    });
}

Result<std::shared_ptr<const engine::MoveOrder>> make_order(
    std::span<const StreamHandle> streams, std::span<const engine::MemoryPlace> devices) {
    using Order = std::shared_ptr<const engine::MoveOrder>;
    return base::as_result("gpu", [&]() -> Result<Order> {
        PENSTOCK_TRY(calls, driver());
        auto order = std::make_shared<StreamOrder>(*calls);
        const auto add_default = [&](StreamHandle stream) -> Result<void> {
            for (const engine::MemoryPlace& place : devices) {
                if (place.kind == MemoryKind::kDevice) {
                    stream.device = place.device;
                    PENSTOCK_CHECK(order->add(stream));
                }
            }
            return {};
        };
        if (streams.empty()) {
            PENSTOCK_CHECK(add_default({}));
        }
        for (const StreamHandle& stream : streams) {
            PENSTOCK_CHECK(is_default(stream) && stream.device < 0 ? add_default(stream)
                                                                   : order->add(stream));
        }
        return order->empty() ? Order() : Order(std::move(order));
    });
}

}  // namespace penstock::device
