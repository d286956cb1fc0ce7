// SPDX-License-Identifier: Apache-2.0
// The driver's calls that the fake has: their types, as NVIDIA's header has them, and since which
// version of CUDA each form is there.
#pragma once

#include "cuda_more.hpp"

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cuda::fake {

extern "C" {
#pragma GCC visibility push(default)
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int* version);
CUresult cuGetErrorName(CUresult error, const char** text);
CUresult cuGetErrorString(CUresult error, const char** text);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDeviceGetName(char* name, int bytes, CUdevice device);
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device);
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device);
CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device);
CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text);
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device);
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device);
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext* context, void* affinity, int count, unsigned flags,
                        CUdevice device);
CUresult cuCtxCreate_v4(CUcontext* context, void* parameters, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext* context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxGetDevice(CUdevice* device);
CUresult cuCtxGetFlags(unsigned* flags);
CUresult cuCtxGetId(CUcontext context, unsigned long long* id);
CUresult cuCtxGetApiVersion(CUcontext context, unsigned* version);
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest);
CUresult cuCtxGetLimit(std::size_t* value, unsigned limit);
CUresult cuCtxSetLimit(unsigned limit, std::size_t value);
CUresult cuCtxSynchronize();
CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total);
CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr* memory, std::size_t* pitch, std::size_t width,
                            std::size_t height, unsigned element);
CUresult cuMemFree_v2(CUdeviceptr memory);
CUresult cuMemAllocManaged(CUdeviceptr* memory, std::size_t bytes, unsigned flags);
CUresult cuMemAllocHost_v2(void** memory, std::size_t bytes);
CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void* memory);
CUresult cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void* memory);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* memory, unsigned flags);
CUresult cuMemHostGetFlags(unsigned* flags, void* memory);
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr inside);
CUresult cuMemAllocAsync(CUdeviceptr* memory, std::size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* memory, std::size_t bytes, CUmemoryPool pool,
                                 CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream handle);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device);
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device);
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr pointer);
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** values,
                                CUdeviceptr pointer);
CUresult cuPointerSetAttribute(const void* value, unsigned which, CUdeviceptr pointer);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes);
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes);
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream);
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, std::size_t bytes);
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, std::size_t bytes, CUstream stream);
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* how);
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* how);
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* how, CUstream stream);
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                            std::size_t count, CUmemcpyAttributes* attributes, std::size_t* firsts,
                            std::size_t attribute_count, std::size_t* failed, CUstream stream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                               std::size_t count, CUmemcpyAttributes* attributes,
                               std::size_t* firsts, std::size_t attribute_count, CUstream stream);
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count);
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, std::size_t count);
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, std::size_t count);
CUresult cuMemsetD2D8_v2(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                         std::size_t height);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream);
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream);
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream);
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value,
                           std::size_t width, std::size_t height, CUstream stream);
CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamGetFlags(CUstream stream, unsigned* flags);
CUresult cuStreamGetPriority(CUstream stream, int* priority);
CUresult cuStreamGetId(CUstream stream, unsigned long long* id);
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context);
CUresult cuStreamGetDevice(CUstream stream, CUdevice* device);
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* capturing);
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn* function, void* data);
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback* function, void* data,
                             unsigned flags);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end);
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent begin, CUevent end);
CUresult cuModuleLoadData(CUmodule* module, const void* image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** parameters, void** extra);
CUresult cuGetProcAddress_v2(const char* symbol, void** found, int version, std::uint64_t flags,
                             CUdriverProcAddressQueryResult* status);
CUresult cuGetProcAddress(const char* symbol, void** found, int version, std::uint64_t flags);
#pragma GCC visibility pop
}

}  // namespace penstock::device::cuda::fake
// NOLINTEND(readability-identifier-naming)

// ENTRY(name as programs ask for it, the CUDA version that brought this form, the function)
#define FAKE_GPU_CALLS(ENTRY)                                                          \
    ENTRY(cuInit, 2000, cuInit)                                                        \
    ENTRY(cuDriverGetVersion, 2020, cuDriverGetVersion)                                \
    ENTRY(cuGetErrorName, 6000, cuGetErrorName)                                        \
    ENTRY(cuGetErrorString, 6000, cuGetErrorString)                                    \
    ENTRY(cuDeviceGetCount, 2000, cuDeviceGetCount)                                    \
    ENTRY(cuDeviceGet, 2000, cuDeviceGet)                                              \
    ENTRY(cuDeviceGetName, 2000, cuDeviceGetName)                                      \
    ENTRY(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                 \
    ENTRY(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                            \
    ENTRY(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId)                              \
    ENTRY(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId)                          \
    ENTRY(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                  \
    ENTRY(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                                      \
    ENTRY(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)                          \
    ENTRY(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                    \
    ENTRY(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)              \
    ENTRY(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)                  \
    ENTRY(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)                \
    ENTRY(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2)            \
    ENTRY(cuCtxCreate, 3020, cuCtxCreate_v2)                                           \
    ENTRY(cuCtxCreate, 11040, cuCtxCreate_v3)                                          \
    ENTRY(cuCtxCreate, 12050, cuCtxCreate_v4)                                          \
    ENTRY(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                         \
    ENTRY(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                                 \
    ENTRY(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                                   \
    ENTRY(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                      \
    ENTRY(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                      \
    ENTRY(cuCtxGetDevice, 2000, cuCtxGetDevice)                                        \
    ENTRY(cuCtxGetFlags, 7000, cuCtxGetFlags)                                          \
    ENTRY(cuCtxGetId, 12000, cuCtxGetId)                                               \
    ENTRY(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion)                                \
    ENTRY(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)              \
    ENTRY(cuCtxGetLimit, 3010, cuCtxGetLimit)                                          \
    ENTRY(cuCtxSetLimit, 3010, cuCtxSetLimit)                                          \
    ENTRY(cuCtxSynchronize, 2000, cuCtxSynchronize)                                    \
    ENTRY(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                         \
    ENTRY(cuMemAlloc, 3020, cuMemAlloc_v2)                                             \
    ENTRY(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                                   \
    ENTRY(cuMemFree, 3020, cuMemFree_v2)                                               \
    ENTRY(cuMemAllocManaged, 6000, cuMemAllocManaged)                                  \
    ENTRY(cuMemAllocHost, 3020, cuMemAllocHost_v2)                                     \
    ENTRY(cuMemHostAlloc, 2020, cuMemHostAlloc)                                        \
    ENTRY(cuMemFreeHost, 2000, cuMemFreeHost)                                          \
    ENTRY(cuMemHostRegister, 6050, cuMemHostRegister_v2)                               \
    ENTRY(cuMemHostUnregister, 4000, cuMemHostUnregister)                              \
    ENTRY(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)               \
    ENTRY(cuMemHostGetFlags, 2030, cuMemHostGetFlags)                                  \
    ENTRY(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                         \
    ENTRY(cuMemAllocAsync, 11020, cuMemAllocAsync)                                     \
    ENTRY(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync)                     \
    ENTRY(cuMemFreeAsync, 11020, cuMemFreeAsync)                                       \
    ENTRY(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool)                 \
    ENTRY(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool)                               \
    ENTRY(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                          \
    ENTRY(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                        \
    ENTRY(cuPointerSetAttribute, 6000, cuPointerSetAttribute)                          \
    ENTRY(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                         \
    ENTRY(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                         \
    ENTRY(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                         \
    ENTRY(cuMemcpy, 4000, cuMemcpy)                                                    \
    ENTRY(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                               \
    ENTRY(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                               \
    ENTRY(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                               \
    ENTRY(cuMemcpyAsync, 4000, cuMemcpyAsync)                                          \
    ENTRY(cuMemcpyPeer, 4000, cuMemcpyPeer)                                            \
    ENTRY(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync)                                  \
    ENTRY(cuMemcpy2D, 3020, cuMemcpy2D_v2)                                             \
    ENTRY(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2)                           \
    ENTRY(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2)                                   \
    ENTRY(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync)                               \
    ENTRY(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2)                            \
    ENTRY(cuMemsetD8, 3020, cuMemsetD8_v2)                                             \
    ENTRY(cuMemsetD16, 3020, cuMemsetD16_v2)                                           \
    ENTRY(cuMemsetD32, 3020, cuMemsetD32_v2)                                           \
    ENTRY(cuMemsetD2D8, 3020, cuMemsetD2D8_v2)                                         \
    ENTRY(cuMemsetD8Async, 3020, cuMemsetD8Async)                                      \
    ENTRY(cuMemsetD16Async, 3020, cuMemsetD16Async)                                    \
    ENTRY(cuMemsetD32Async, 3020, cuMemsetD32Async)                                    \
    ENTRY(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async)                                  \
    ENTRY(cuStreamCreate, 2000, cuStreamCreate)                                        \
    ENTRY(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)                \
    ENTRY(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                   \
    ENTRY(cuStreamQuery, 2000, cuStreamQuery)                                          \
    ENTRY(cuStreamSynchronize, 2000, cuStreamSynchronize)                              \
    ENTRY(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                                  \
    ENTRY(cuStreamGetFlags, 5050, cuStreamGetFlags)                                    \
    ENTRY(cuStreamGetPriority, 5050, cuStreamGetPriority)                              \
    ENTRY(cuStreamGetId, 12000, cuStreamGetId)                                         \
    ENTRY(cuStreamGetCtx, 9020, cuStreamGetCtx)                                        \
    ENTRY(cuStreamGetDevice, 12080, cuStreamGetDevice)                                 \
    ENTRY(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                             \
    ENTRY(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) \
    ENTRY(cuLaunchHostFunc, 10000, cuLaunchHostFunc)                                   \
    ENTRY(cuStreamAddCallback, 5000, cuStreamAddCallback)                              \
    ENTRY(cuModuleLoadData, 2000, cuModuleLoadData)                                    \
    ENTRY(cuModuleUnload, 2000, cuModuleUnload)                                        \
    ENTRY(cuModuleGetFunction, 2000, cuModuleGetFunction)                              \
    ENTRY(cuLaunchKernel, 4000, cuLaunchKernel)                                        \
    ENTRY(cuEventCreate, 2000, cuEventCreate)                                          \
    ENTRY(cuEventDestroy, 4000, cuEventDestroy_v2)                                     \
    ENTRY(cuEventRecord, 2000, cuEventRecord)                                          \
    ENTRY(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags)                       \
    ENTRY(cuEventQuery, 2000, cuEventQuery)                                            \
    ENTRY(cuEventSynchronize, 2000, cuEventSynchronize)                                \
    ENTRY(cuEventElapsedTime, 2000, cuEventElapsedTime)                                \
    ENTRY(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)
