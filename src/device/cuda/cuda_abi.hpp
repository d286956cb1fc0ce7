// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's binary interface that Penstock uses, in our own words, so that a
// build needs no header of NVIDIA's. Names and values are NVIDIA's; tests/device/cuda_abi_test.cpp
// compares each with the headers of CUDA 12 and 13. Nothing here is a symbol: driver.hpp asks
// libcuda for the calls at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::device::cuda {

using CUdevice = int;
using CUdeviceptr = unsigned long long;  // NOLINT(google-runtime-int): NVIDIA's own type
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;

struct CUuuid {
    char bytes[16];
};

enum CUresult : unsigned int {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_STUB_LIBRARY = 34,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : unsigned int {
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
};

enum CUpointer_attribute : unsigned int {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
};

/// The answer of CU_POINTER_ATTRIBUTE_MEMORY_TYPE, an unsigned int; 0: unknown to the driver.
enum CUmemorytype : unsigned int {
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_MEMORYTYPE_UNIFIED = 4,
};

enum CUmemLocationType : unsigned int {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,  // from CUDA 12.2 on
};

struct CUmemLocation {
    CUmemLocationType type;
    int id;
};

enum CUmemcpySrcAccessOrder : unsigned int {
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3,
};

/// An argument of cuMemcpyBatchAsync.
struct CUmemcpyAttributes {
    CUmemcpySrcAccessOrder srcAccessOrder;
    CUmemLocation srcLocHint;
    CUmemLocation dstLocHint;
    unsigned int flags;
};

enum CUstreamCaptureStatus : unsigned int {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};
enum CUstreamCaptureMode : unsigned int {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUdriverProcAddressQueryResult : unsigned int {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

/// The default stream is the legacy one, whatever the caller's own files were compiled for.
inline constexpr std::uint64_t CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;
inline constexpr unsigned int CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned int CU_MEMHOSTREGISTER_DEVICEMAP = 2;
inline constexpr unsigned int CU_MEMHOSTALLOC_PORTABLE = 1;
inline constexpr unsigned int CU_MEMHOSTALLOC_DEVICEMAP = 2;
inline constexpr unsigned int CU_STREAM_NON_BLOCKING = 1;
inline constexpr unsigned int CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned int CU_EVENT_WAIT_DEFAULT = 0;
inline constexpr unsigned int CU_MEM_ATTACH_GLOBAL = 1;
/// The handles of the two default streams; 0 is the legacy one in all that we call.
inline constexpr std::uintptr_t CU_STREAM_LEGACY = 1;
inline constexpr std::uintptr_t CU_STREAM_PER_THREAD = 2;

/// The one call that is looked up by its name in the library (CUDA 12.0); it finds all others.
using cuGetProcAddress_type = CUresult(const char* symbol, void** pfn, int cudaVersion,
                                       std::uint64_t flags,
                                       CUdriverProcAddressQueryResult* symbolStatus);

}  // namespace penstock::device::cuda

// CALL(name, the CUDA version whose form of it this is, its type). Every driver from 12.0 on has
// these.
#define PENSTOCK_CUDA_CALLS(CALL)                                                                \
    CALL(cuInit, 2000, CUresult(unsigned int flags))                                             \
    CALL(cuDriverGetVersion, 2020, CUresult(int* driverVersion))                                 \
    CALL(cuGetErrorName, 6000, CUresult(CUresult error, const char** text))                      \
    CALL(cuGetErrorString, 6000, CUresult(CUresult error, const char** text))                    \
    CALL(cuDeviceGetCount, 2000, CUresult(int* count))                                           \
    CALL(cuDeviceGet, 2000, CUresult(CUdevice* device, int ordinal))                             \
    CALL(cuDeviceGetName, 2000, CUresult(char* name, int bytes, CUdevice device))                \
    CALL(cuDeviceTotalMem, 3020, CUresult(std::size_t* bytes, CUdevice device))                  \
    CALL(cuDeviceGetAttribute, 2000, CUresult(int* value, CUdevice_attribute which, CUdevice))   \
    CALL(cuDeviceGetPCIBusId, 4010, CUresult(char* text, int bytes, CUdevice device))            \
    CALL(cuDeviceGetUuid, 11040, CUresult(CUuuid* uuid, CUdevice device))                        \
    CALL(cuDevicePrimaryCtxRetain, 7000, CUresult(CUcontext* context, CUdevice device))          \
    CALL(cuDevicePrimaryCtxRelease, 11000, CUresult(CUdevice device))                            \
    CALL(cuDevicePrimaryCtxGetState, 7000, CUresult(CUdevice, unsigned int* flags, int* active)) \
    CALL(cuCtxPushCurrent, 4000, CUresult(CUcontext context))                                    \
    CALL(cuCtxPopCurrent, 4000, CUresult(CUcontext* context))                                    \
    CALL(cuCtxGetCurrent, 4000, CUresult(CUcontext* context))                                    \
    CALL(cuCtxGetDevice, 2000, CUresult(CUdevice* device))                                       \
    CALL(cuMemAlloc, 3020, CUresult(CUdeviceptr* memory, std::size_t bytes))                     \
    CALL(cuMemFree, 3020, CUresult(CUdeviceptr memory))                                          \
    CALL(cuMemGetInfo, 3020, CUresult(std::size_t* free, std::size_t* total))                    \
    CALL(cuMemGetAddressRange, 3020,                                                             \
         CUresult(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr inside))                    \
    CALL(cuMemHostRegister, 6050, CUresult(void* memory, std::size_t bytes, unsigned int flags)) \
    CALL(cuMemHostUnregister, 4000, CUresult(void* memory))                                      \
    CALL(cuMemHostGetDevicePointer, 3020,                                                        \
         CUresult(CUdeviceptr* device, void* memory, unsigned int flags))                        \
    CALL(cuModuleLoadData, 2000, CUresult(CUmodule* module, const void* image))                  \
    CALL(cuModuleUnload, 2000, CUresult(CUmodule module))                                        \
    CALL(cuModuleGetFunction, 2000, CUresult(CUfunction*, CUmodule module, const char* name))    \
    CALL(cuLaunchKernel, 4000,                                                                   \
         CUresult(CUfunction function, unsigned int grid_x, unsigned int grid_y,                 \
                  unsigned int grid_z, unsigned int block_x, unsigned int block_y,               \
                  unsigned int block_z, unsigned int shared_bytes, CUstream stream,              \
                  void** parameters, void** extra))                                              \
    CALL(cuMemcpyHtoDAsync, 3020,                                                                \
         CUresult(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream))         \
    CALL(cuMemcpyDtoHAsync, 3020,                                                                \
         CUresult(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream))               \
    CALL(cuPointerGetAttribute, 4000,                                                            \
         CUresult(void* value, CUpointer_attribute which, CUdeviceptr pointer))                  \
    CALL(cuPointerGetAttributes, 7000,                                                           \
         CUresult(unsigned int count, CUpointer_attribute* which, void** values, CUdeviceptr))   \
    CALL(cuStreamCreate, 2000, CUresult(CUstream* stream, unsigned int flags))                   \
    CALL(cuStreamDestroy, 4000, CUresult(CUstream stream))                                       \
    CALL(cuStreamGetCtx, 9020, CUresult(CUstream stream, CUcontext* context))                    \
    CALL(cuStreamWaitEvent, 3020, CUresult(CUstream stream, CUevent event, unsigned int flags))  \
    CALL(cuStreamQuery, 2000, CUresult(CUstream stream))                                         \
    CALL(cuStreamIsCapturing, 10000, CUresult(CUstream stream, CUstreamCaptureStatus* status))   \
    CALL(cuThreadExchangeStreamCaptureMode, 10010, CUresult(CUstreamCaptureMode* mode))          \
    CALL(cuEventCreate, 2000, CUresult(CUevent* event, unsigned int flags))                      \
    CALL(cuEventRecord, 2000, CUresult(CUevent event, CUstream stream))                          \
    CALL(cuEventQuery, 2000, CUresult(CUevent event))                                            \
    CALL(cuEventDestroy, 4000, CUresult(CUevent event))

// A driver may lack these: a null pointer then. A driver of 13 has the older form, too.
#define PENSTOCK_CUDA_OPTIONAL_CALLS(CALL)                                                   \
    CALL(cuMemcpyBatchAsync, 12080,                                                          \
         CUresult(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count, \
                  CUmemcpyAttributes* attributes, std::size_t* first_of_attributes,          \
                  std::size_t attribute_count, std::size_t* failed, CUstream stream))

// Tests and benchmarks ask for these; the library never does.
#define PENSTOCK_CUDA_CALLS_OF_TESTS(CALL)                                                        \
    CALL(cuMemAllocManaged, 6000, CUresult(CUdeviceptr* memory, std::size_t bytes, unsigned int)) \
    CALL(cuMemHostAlloc, 2020, CUresult(void** memory, std::size_t bytes, unsigned int flags))    \
    CALL(cuMemFreeHost, 2000, CUresult(void* memory))                                             \
    CALL(cuMemcpyHtoD, 3020, CUresult(CUdeviceptr to, const void* from, std::size_t bytes))       \
    CALL(cuMemcpyDtoH, 3020, CUresult(void* to, CUdeviceptr from, std::size_t bytes))             \
    CALL(cuMemsetD8Async, 3020, CUresult(CUdeviceptr, unsigned char, std::size_t, CUstream))      \
    CALL(cuStreamSynchronize, 2000, CUresult(CUstream stream))                                    \
    CALL(cuEventSynchronize, 2000, CUresult(CUevent event))                                       \
    CALL(cuCtxSynchronize, 2000, CUresult())                                                      \
    CALL(cuCtxSetCurrent, 4000, CUresult(CUcontext context))

namespace penstock::device::cuda {

#define PENSTOCK_CUDA_TYPE(name, version, ...) using name##_type = __VA_ARGS__;
PENSTOCK_CUDA_CALLS(PENSTOCK_CUDA_TYPE)
PENSTOCK_CUDA_OPTIONAL_CALLS(PENSTOCK_CUDA_TYPE)
PENSTOCK_CUDA_CALLS_OF_TESTS(PENSTOCK_CUDA_TYPE)
#undef PENSTOCK_CUDA_TYPE

}  // namespace penstock::device::cuda
