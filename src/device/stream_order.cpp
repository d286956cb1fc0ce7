// SPDX-License-Identifier: Apache-2.0
#include "device/stream_order.hpp"

#include "device/context.hpp"

#include <fmt/format.h>

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
                        "part of; start the transfer before the capture or after it",
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

}  // namespace

StreamOrder::StreamOrder(const Driver& driver) : driver_(driver) {}

StreamOrder::~StreamOrder() {
    if (may_call_driver()) {
        for (const Recorded& recorded : events_) {
            destroy(recorded);
        }
    }
}

void StreamOrder::destroy(const Recorded& recorded) const {
    end_in(driver_, recorded.context, [&] { driver_.cuEventDestroy(recorded.event); });
}

Result<void> StreamOrder::add(const StreamHandle& stream) {
    auto* handle = reinterpret_cast<CUstream>(stream.handle);
    Recorded made;
    if (is_default(stream)) {
        PENSTOCK_TRY(context, primary_context(driver_, stream.device));
        made.context = context;
    } else if (const CUresult result = driver_.cuStreamGetCtx(handle, &made.context);
               result != CUDA_SUCCESS) {
        return fail(refused(driver_, stream, result, "cuStreamGetCtx"));
    }
    events_.reserve(events_.size() + 1);
    const Current current(driver_, made.context);
    CUresult result = current.result();
    const char* call = "cuCtxPushCurrent";
    if (result == CUDA_SUCCESS) {
        CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
        call = "cuStreamIsCapturing";
        result = driver_.cuStreamIsCapturing(handle, &capture);
        if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE) {
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    if (result == CUDA_SUCCESS) {
        call = "cuEventCreate";
        result = driver_.cuEventCreate(&made.event, CU_EVENT_DISABLE_TIMING);
    }
    if (result != CUDA_SUCCESS) {
        return fail(refused(driver_, stream, result, call));
    }
    call = "cuEventRecord";
    result = driver_.cuEventRecord(made.event, handle);
    if (result == CUDA_SUCCESS) {
        call = "cuEventQuery";
        result = driver_.cuEventQuery(made.event);
        if (result == CUDA_ERROR_NOT_READY) {
            events_.push_back(made);
            return {};
        }
    }
    driver_.cuEventDestroy(made.event);  // it has passed, or says nothing
    return result == CUDA_SUCCESS ? Result<void>{} : fail(refused(driver_, stream, result, call));
}

Result<bool> StreamOrder::passed() const {
    if (passed_.load(std::memory_order_acquire)) {
        return true;
    }
    for (const Recorded& recorded : events_) {
        const Current current(driver_, recorded.context);
        const bool asked = current.result() == CUDA_SUCCESS;
        const CUresult result = asked ? driver_.cuEventQuery(recorded.event) : current.result();
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
        CUcontext context = nullptr;
        const CUresult result =
            calls->cuStreamGetCtx(reinterpret_cast<CUstream>(stream.handle), &context);
        return result == CUDA_SUCCESS ? Result<void>{}
                                      : fail(refused(*calls, stream, result, "cuStreamGetCtx"));
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
