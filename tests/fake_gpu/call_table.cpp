// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress, and the calls that the fake knows and refuses.
#include "calls.hpp"
#include "machine.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cuda::fake {

CUresult refused_call() {
    return CUDA_ERROR_NOT_SUPPORTED;
}

namespace {

struct Known {
    const char* name;
    int since;
    void* function;
};

/// All forms of a call, the older first.
const std::vector<Known>& known() {
#define FAKE_GPU_ROW(name, since, function) \
    Known{#name, since, reinterpret_cast<void*>(&(function))},
    static const auto* table = new std::vector<Known>{
        FAKE_GPU_CALLS(FAKE_GPU_ROW)  //
        Known{"cuGetProcAddress", 11030, reinterpret_cast<void*>(&cuGetProcAddress)},
        Known{"cuGetProcAddress", 12000, reinterpret_cast<void*>(&cuGetProcAddress_v2)},
        // Memory and events are not shared between processes here.
        Known{"cuIpcGetMemHandle", 4010, reinterpret_cast<void*>(&refused_call)},
        Known{"cuIpcOpenMemHandle", 11000, reinterpret_cast<void*>(&refused_call)},
        Known{"cuIpcCloseMemHandle", 4010, reinterpret_cast<void*>(&refused_call)},
        Known{"cuIpcGetEventHandle", 4010, reinterpret_cast<void*>(&refused_call)},
        Known{"cuIpcOpenEventHandle", 4010, reinterpret_cast<void*>(&refused_call)},
        Known{"cuMemGetHandleForAddressRange", 11070, reinterpret_cast<void*>(&refused_call)},
    };
#undef FAKE_GPU_ROW
    return *table;
}

}  // namespace

FAKE_GPU_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** found, int version,
                                             std::uint64_t flags,
                                             CUdriverProcAddressQueryResult* status) {
    FAKE_GPU_CALL(kNothing);
    if (symbol == nullptr || found == nullptr || version > machine.settings.driver_version ||
        flags >
            (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *found = nullptr;
    auto is = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const bool hidden =
        machine.settings.hidden.find("," + std::string(symbol) + ",") != std::string::npos;
    int best = -1;
    for (const Known& row : known()) {
        if (hidden || std::strcmp(row.name, symbol) != 0 ||
            row.since > machine.settings.driver_version) {
            continue;
        }
        if (row.since <= version && row.since > best) {
            best = row.since;
            *found = row.function;
            is = CU_GET_PROC_ADDRESS_SUCCESS;
        } else if (best < 0) {
            is = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    if (status != nullptr) {
        *status = is;
    }
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuGetProcAddress(const char* symbol, void** found, int version,
                                          std::uint64_t flags) {
    return cuGetProcAddress_v2(symbol, found, version, flags, nullptr);
}

// The calls have the types that Penstock calls them by.
#define FAKE_GPU_SAME(name, function) \
    static_assert(std::is_same_v<decltype(function), name##_type>, #function);
FAKE_GPU_SAME(cuGetProcAddress, cuGetProcAddress_v2)
FAKE_GPU_SAME(cuInit, cuInit)
FAKE_GPU_SAME(cuDriverGetVersion, cuDriverGetVersion)
FAKE_GPU_SAME(cuGetErrorName, cuGetErrorName)
FAKE_GPU_SAME(cuGetErrorString, cuGetErrorString)
FAKE_GPU_SAME(cuDeviceGetCount, cuDeviceGetCount)
FAKE_GPU_SAME(cuDeviceGet, cuDeviceGet)
FAKE_GPU_SAME(cuDeviceGetName, cuDeviceGetName)
FAKE_GPU_SAME(cuDeviceTotalMem, cuDeviceTotalMem_v2)
FAKE_GPU_SAME(cuDeviceGetAttribute, cuDeviceGetAttribute)
FAKE_GPU_SAME(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId)
FAKE_GPU_SAME(cuDeviceGetUuid, cuDeviceGetUuid_v2)
FAKE_GPU_SAME(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)
FAKE_GPU_SAME(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)
FAKE_GPU_SAME(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState)
FAKE_GPU_SAME(cuCtxPushCurrent, cuCtxPushCurrent_v2)
FAKE_GPU_SAME(cuCtxPopCurrent, cuCtxPopCurrent_v2)
FAKE_GPU_SAME(cuCtxSetCurrent, cuCtxSetCurrent)
FAKE_GPU_SAME(cuCtxGetCurrent, cuCtxGetCurrent)
FAKE_GPU_SAME(cuCtxGetDevice, cuCtxGetDevice)
FAKE_GPU_SAME(cuCtxSynchronize, cuCtxSynchronize)
FAKE_GPU_SAME(cuMemAlloc, cuMemAlloc_v2)
FAKE_GPU_SAME(cuMemFree, cuMemFree_v2)
FAKE_GPU_SAME(cuMemGetInfo, cuMemGetInfo_v2)
FAKE_GPU_SAME(cuMemAllocManaged, cuMemAllocManaged)
FAKE_GPU_SAME(cuMemHostAlloc, cuMemHostAlloc)
FAKE_GPU_SAME(cuMemFreeHost, cuMemFreeHost)
FAKE_GPU_SAME(cuMemHostRegister, cuMemHostRegister_v2)
FAKE_GPU_SAME(cuMemHostUnregister, cuMemHostUnregister)
FAKE_GPU_SAME(cuMemGetAddressRange, cuMemGetAddressRange_v2)
FAKE_GPU_SAME(cuPointerGetAttribute, cuPointerGetAttribute)
FAKE_GPU_SAME(cuPointerGetAttributes, cuPointerGetAttributes)
FAKE_GPU_SAME(cuMemcpyHtoD, cuMemcpyHtoD_v2)
FAKE_GPU_SAME(cuMemcpyDtoH, cuMemcpyDtoH_v2)
FAKE_GPU_SAME(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)
FAKE_GPU_SAME(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)
FAKE_GPU_SAME(cuMemcpyBatchAsync, cuMemcpyBatchAsync)
FAKE_GPU_SAME(cuMemsetD8Async, cuMemsetD8Async)
FAKE_GPU_SAME(cuStreamCreate, cuStreamCreate)
FAKE_GPU_SAME(cuStreamDestroy, cuStreamDestroy_v2)
FAKE_GPU_SAME(cuStreamQuery, cuStreamQuery)
FAKE_GPU_SAME(cuStreamIsCapturing, cuStreamIsCapturing)
FAKE_GPU_SAME(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)
FAKE_GPU_SAME(cuStreamSynchronize, cuStreamSynchronize)
FAKE_GPU_SAME(cuStreamWaitEvent, cuStreamWaitEvent)
FAKE_GPU_SAME(cuStreamGetCtx, cuStreamGetCtx)
FAKE_GPU_SAME(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)
FAKE_GPU_SAME(cuModuleLoadData, cuModuleLoadData)
FAKE_GPU_SAME(cuModuleUnload, cuModuleUnload)
FAKE_GPU_SAME(cuModuleGetFunction, cuModuleGetFunction)
FAKE_GPU_SAME(cuLaunchKernel, cuLaunchKernel)
FAKE_GPU_SAME(cuEventCreate, cuEventCreate)
FAKE_GPU_SAME(cuEventDestroy, cuEventDestroy_v2)
FAKE_GPU_SAME(cuEventRecord, cuEventRecord)
FAKE_GPU_SAME(cuEventQuery, cuEventQuery)
FAKE_GPU_SAME(cuEventSynchronize, cuEventSynchronize)
#undef FAKE_GPU_SAME

}  // namespace penstock::device::cuda::fake
// NOLINTEND(readability-identifier-naming)
