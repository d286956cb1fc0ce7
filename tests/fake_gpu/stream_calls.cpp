// SPDX-License-Identifier: Apache-2.0
// Calls about streams and events.
#include "calls.hpp"
#include "machine.hpp"

#include <algorithm>
#include <utility>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cuda::fake {
namespace {

constexpr int kPriorityLeast = 0;
constexpr int kPriorityGreatest = -5;

std::shared_ptr<Event> event_of(const Machine& machine, CUevent handle) {
    const auto found = machine.events.find(reinterpret_cast<std::uintptr_t>(handle));
    return found == machine.events.end() ? nullptr : found->second;
}

CUresult status(const Machine& machine) {
    return static_cast<CUresult>(machine.broken.load());
}

CUresult make_stream(Call& call, CUstream* handle, unsigned flags, int priority) {
    Machine& machine = call.machine();
    if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<Stream>();
    made->context = call.context();
    made->flags = flags;
    made->priority = std::clamp(priority, kPriorityGreatest, kPriorityLeast);
    made->number = machine.next_number++;
    const std::uintptr_t value = machine.new_handle();
    machine.streams[value] = made;
    machine.queues.push_back(made);
    machine.counters.streams_made++;
    machine.counters.streams_now++;
    *handle = reinterpret_cast<CUstream>(value);
    return CUDA_SUCCESS;
}

CUresult record(Call& call, CUevent event, CUstream stream) {
    const auto what = event_of(call.machine(), event);
    const auto where = call.stream(stream);
    if (what == nullptr || where == nullptr || what->context != where->context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    what->last = std::make_shared<Record>();
    Work work;
    work.record = what->last;
    call.machine().give(*where, std::move(work));
    return CUDA_SUCCESS;
}

CUresult elapsed(Call& call, float* milliseconds, CUevent begin, CUevent end) {
    const auto first = event_of(call.machine(), begin);
    const auto last = event_of(call.machine(), end);
    if (first == nullptr || last == nullptr || first->last == nullptr || last->last == nullptr ||
        ((first->flags | last->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (milliseconds == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!first->last->done || !last->last->done) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = static_cast<float>(static_cast<double>(last->last->at - first->last->at) / 1e6);
    return CUDA_SUCCESS;
}

CUresult run_later(Call& call, CUstream stream, std::function<void()> act) {
    const auto where = call.stream(stream);
    if (where == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    Work work;
    work.lane = Lane::kOther;
    work.act = std::move(act);
    work.calls_program = true;
    call.machine().give(*where, std::move(work));
    return CUDA_SUCCESS;
}

}  // namespace

FAKE_GPU_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    return make_stream(call, stream, flags, 0);
}

FAKE_GPU_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags,
                                                    int priority) {
    FAKE_GPU_CALL(kContext);
    return make_stream(call, stream, flags, priority);
}

/// Returns at once; what the stream holds is still done.
FAKE_GPU_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    FAKE_GPU_CALL(kContext);
    if (machine.streams.erase(reinterpret_cast<std::uintptr_t>(stream)) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    machine.counters.streams_now--;
    machine.advance();
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuStreamQuery(CUstream stream) {
    FAKE_GPU_CALL(kContext);
    const auto of = call.stream(stream);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return machine.idle(*of) ? status(machine) : CUDA_ERROR_NOT_READY;
}

FAKE_GPU_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    FAKE_GPU_CALL(kContext);
    const auto of = call.stream(stream);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    machine.counters.synchronizations++;
    machine.wait_for(call.lock(), *of, machine.next_number);
    return status(machine);
}

FAKE_GPU_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    const auto of = call.stream(stream);
    const auto what = event_of(machine, event);
    if (of == nullptr || what == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (flags > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (what->last != nullptr) {
        Work work;
        work.wait = what->last;
        machine.give(*of, std::move(work));
    }
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
    FAKE_GPU_CALL(kContext);
    const auto of = call.stream(stream);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (flags == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = of->flags;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    FAKE_GPU_CALL(kContext);
    const auto of = call.stream(stream);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (priority == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *priority = of->priority;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
    FAKE_GPU_CALL(kContext);
    const auto of = call.stream(stream);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (id == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *id = of->number;
    return CUDA_SUCCESS;
}

/// A stream that was made answers with any context or none current; a default stream, the current.
FAKE_GPU_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    FAKE_GPU_CALL(kInit);
    const auto of = call.stream(stream);
    if (of == nullptr) {
        return reinterpret_cast<std::uintptr_t>(stream) <= CU_STREAM_PER_THREAD
                   ? CUDA_ERROR_INVALID_CONTEXT
                   : CUDA_ERROR_INVALID_HANDLE;
    }
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = reinterpret_cast<CUcontext>(of->context->handle);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
    FAKE_GPU_CALL(kInit);
    const auto of = call.stream(stream);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (device == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = of->context->device;
    return CUDA_SUCCESS;
}

/// No stream is ever captured here; fake_gpu_capture() is as if one of another program were.
FAKE_GPU_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* capturing) {
    FAKE_GPU_CALL(kContext);
    if (call.stream(stream) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (capturing == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    FAKE_GPU_CALL(kContext);
    if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(capture_mode(), *mode);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn* function, void* data) {
    FAKE_GPU_CALL(kContext);
    if (function == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return run_later(call, stream, [function, data] { function(data); });
}

FAKE_GPU_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback* function,
                                             void* data, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    if (function == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return run_later(call, stream,
                     [stream, function, data] { function(stream, CUDA_SUCCESS, data); });
}

FAKE_GPU_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    if (event == nullptr || flags > (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) {
        return event != nullptr && (flags & CU_EVENT_INTERPROCESS) != 0 ? CUDA_ERROR_NOT_SUPPORTED
                                                                        : CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<Event>();
    made->context = call.context();
    made->flags = flags;
    const std::uintptr_t value = machine.new_handle();
    machine.events[value] = made;
    machine.counters.events_made++;
    machine.counters.events_now++;
    *event = reinterpret_cast<CUevent>(value);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    FAKE_GPU_CALL(kContext);
    if (machine.events.erase(reinterpret_cast<std::uintptr_t>(event)) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    machine.counters.events_now--;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return record(call, event, stream);
}

FAKE_GPU_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    return flags == 0 ? record(call, event, stream) : CUDA_ERROR_INVALID_VALUE;
}

/// Needs no context: NVIDIA's documentation names none of its errors here.
FAKE_GPU_EXPORT CUresult cuEventQuery(CUevent event) {
    FAKE_GPU_CALL(kInit);
    const auto of = event_of(machine, event);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return of->last == nullptr || of->last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKE_GPU_EXPORT CUresult cuEventSynchronize(CUevent event) {
    FAKE_GPU_CALL(kContext);
    const auto of = event_of(machine, event);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    machine.counters.synchronizations++;
    if (const auto last = of->last) {
        machine.waiters.wait(call.lock(), [&] { return last->done; });
    }
    return status(machine);
}

FAKE_GPU_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
    FAKE_GPU_CALL(kContext);
    return elapsed(call, milliseconds, begin, end);
}

FAKE_GPU_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent begin, CUevent end) {
    FAKE_GPU_CALL(kContext);
    return elapsed(call, milliseconds, begin, end);
}

}  // namespace penstock::device::cuda::fake
// NOLINTEND(readability-identifier-naming)
