// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's binary interface that programs of others use and Penstock does not:
// types and values beyond device/cuda/cuda_abi.hpp. Names and values are NVIDIA's (cuda.h, 13.0).
#pragma once

#include "device/cuda/cuda_abi.hpp"

namespace penstock::device::cuda {

using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUhostFn = void(void* data);
using CUstreamCallback = void(CUstream stream, CUresult status, void* data);

inline constexpr auto CU_DEVICE_ATTRIBUTE_MAX = 160U;
inline constexpr auto CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = static_cast<CUresult>(708);
inline constexpr auto CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = static_cast<CUresult>(704);
inline constexpr auto CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = static_cast<CUresult>(705);

// More of CUpointer_attribute.
inline constexpr unsigned kPointerSyncMemops = 6;
inline constexpr unsigned kPointerBufferId = 7;
inline constexpr unsigned kPointerIpcCapable = 10;
inline constexpr unsigned kPointerAllowedHandleTypes = 14;
inline constexpr unsigned kPointerDirectRdma = 15;
inline constexpr unsigned kPointerAccessFlags = 16;
inline constexpr unsigned kPointerMempool = 17;
inline constexpr unsigned kPointerMappingSize = 18;
inline constexpr unsigned kPointerMappingBase = 19;
inline constexpr unsigned kPointerBlockId = 20;

inline constexpr unsigned CU_EVENT_BLOCKING_SYNC = 1;
inline constexpr unsigned CU_EVENT_INTERPROCESS = 4;
inline constexpr unsigned CU_MEMHOSTALLOC_WRITECOMBINED = 4;
inline constexpr unsigned CU_MEMHOSTREGISTER_IOMEMORY = 4;
inline constexpr unsigned CU_MEMHOSTREGISTER_READ_ONLY = 8;
inline constexpr unsigned CU_MEM_ATTACH_HOST = 2;
inline constexpr unsigned CU_MEM_ATTACH_SINGLE = 4;
inline constexpr std::uint64_t CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2;

/// The argument of cuMemcpy2D and its kin. Arrays are not supported here.
struct CUDA_MEMCPY2D {
    std::size_t srcXInBytes;
    std::size_t srcY;
    CUmemorytype srcMemoryType;
    const void* srcHost;
    CUdeviceptr srcDevice;
    void* srcArray;
    std::size_t srcPitch;
    std::size_t dstXInBytes;
    std::size_t dstY;
    CUmemorytype dstMemoryType;
    void* dstHost;
    CUdeviceptr dstDevice;
    void* dstArray;
    std::size_t dstPitch;
    std::size_t WidthInBytes;
    std::size_t Height;
};

}  // namespace penstock::device::cuda
