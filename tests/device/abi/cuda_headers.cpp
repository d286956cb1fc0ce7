// SPDX-License-Identifier: Apache-2.0
// Compiled once for each release of CUDA whose headers the build finds: it compiles if all of
// cuda_abi.hpp is as NVIDIA has it. PENSTOCK_COMPARED is the function that says so.
#include "device/abi/cuda_headers.hpp"

#include "device/cuda/cuda_abi.hpp"

#include <cstddef>
#include <type_traits>

#ifdef PENSTOCK_CUDA_HEADERS

// Ours, before macros of NVIDIA's have the same names.
namespace penstock::device::cuda {
namespace {
constexpr auto kOurStreamLegacy = CU_STREAM_LEGACY;
constexpr auto kOurStreamPerThread = CU_STREAM_PER_THREAD;
constexpr auto kOurPortable = CU_MEMHOSTREGISTER_PORTABLE;
}  // namespace
}  // namespace penstock::device::cuda

#include <cuda.h>
#include <cudaTypedefs.h>

namespace penstock::device::cuda {
namespace {

// The type of NVIDIA's for one of ours: handles, enums and structs by name, what is made of them by
// its parts.
template <typename Our>
struct Their {
    using type = Our;
};
template <typename Our>
struct Their<Our*> {
    using type = typename Their<Our>::type*;
};
template <typename Our>
struct Their<const Our> {
    using type = const typename Their<Our>::type;
};
template <typename Result, typename... Arguments>
struct Their<Result(Arguments...)> {
    using type = typename Their<Result>::type(typename Their<Arguments>::type...);
};
template <typename Our>
using their = typename Their<Our>::type;

#define PENSTOCK_SAME_NAME(name) \
    template <>                  \
    struct Their<cuda::name> {   \
        using type = ::name;     \
    };

PENSTOCK_SAME_NAME(CUctx_st)
PENSTOCK_SAME_NAME(CUstream_st)
PENSTOCK_SAME_NAME(CUevent_st)
PENSTOCK_SAME_NAME(CUmod_st)
PENSTOCK_SAME_NAME(CUfunc_st)
PENSTOCK_SAME_NAME(CUuuid)
PENSTOCK_SAME_NAME(CUresult)
PENSTOCK_SAME_NAME(CUdevice_attribute)
PENSTOCK_SAME_NAME(CUpointer_attribute)
PENSTOCK_SAME_NAME(CUstreamCaptureStatus)
PENSTOCK_SAME_NAME(CUstreamCaptureMode)
PENSTOCK_SAME_NAME(CUdriverProcAddressQueryResult)
#if CUDA_VERSION >= 12080
PENSTOCK_SAME_NAME(CUmemcpySrcAccessOrder)
PENSTOCK_SAME_NAME(CUmemcpyAttributes)
#endif

static_assert(std::is_same_v<cuda::CUdevice, ::CUdevice>);
static_assert(std::is_same_v<cuda::CUdeviceptr, ::CUdeviceptr>);
static_assert(std::is_same_v<their<cuda::CUcontext>, ::CUcontext>);
static_assert(std::is_same_v<their<cuda::CUstream>, ::CUstream>);
static_assert(std::is_same_v<their<cuda::CUevent>, ::CUevent>);

// Each call, in the form of the version that the driver is asked for.
#define PENSTOCK_SAME_CALL(name, version, ...) \
    static_assert(std::is_same_v<their<cuda::name##_type>*, PFN_##name##_v##version>);
PENSTOCK_CUDA_CALLS(PENSTOCK_SAME_CALL)
PENSTOCK_CUDA_CALLS_OF_TESTS(PENSTOCK_SAME_CALL)
#if CUDA_VERSION >= 12080
PENSTOCK_CUDA_OPTIONAL_CALLS(PENSTOCK_SAME_CALL)
#endif
static_assert(std::is_same_v<their<cuda::cuGetProcAddress_type>*, PFN_cuGetProcAddress_v12000>);

// Enums: the size, and each value.
#define PENSTOCK_SAME_ENUM(name)                \
    static_assert(                              \
        sizeof(cuda::name) == sizeof(::name) && \
        std::is_same_v<std::underlying_type_t<cuda::name>, std::underlying_type_t<::name>>);
#define PENSTOCK_SAME_VALUE(name) \
    static_assert(static_cast<long long>(cuda::name) == static_cast<long long>(::name));

PENSTOCK_SAME_ENUM(CUresult)
PENSTOCK_SAME_ENUM(CUdevice_attribute)
PENSTOCK_SAME_ENUM(CUpointer_attribute)
PENSTOCK_SAME_ENUM(CUmemorytype)
PENSTOCK_SAME_ENUM(CUmemLocationType)
PENSTOCK_SAME_ENUM(CUstreamCaptureStatus)
PENSTOCK_SAME_ENUM(CUstreamCaptureMode)
PENSTOCK_SAME_ENUM(CUdriverProcAddressQueryResult)

PENSTOCK_SAME_VALUE(CUDA_SUCCESS)
PENSTOCK_SAME_VALUE(CUDA_ERROR_INVALID_VALUE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY)
PENSTOCK_SAME_VALUE(CUDA_ERROR_NOT_INITIALIZED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_DEINITIALIZED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_STUB_LIBRARY)
PENSTOCK_SAME_VALUE(CUDA_ERROR_DEVICE_UNAVAILABLE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_NO_DEVICE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_INVALID_DEVICE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_INVALID_IMAGE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_INVALID_CONTEXT)
PENSTOCK_SAME_VALUE(CUDA_ERROR_NO_BINARY_FOR_GPU)
PENSTOCK_SAME_VALUE(CUDA_ERROR_INVALID_PTX)
PENSTOCK_SAME_VALUE(CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
PENSTOCK_SAME_VALUE(CUDA_ERROR_ECC_UNCORRECTABLE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_OPERATING_SYSTEM)
PENSTOCK_SAME_VALUE(CUDA_ERROR_INVALID_HANDLE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_NOT_FOUND)
PENSTOCK_SAME_VALUE(CUDA_ERROR_NOT_READY)
PENSTOCK_SAME_VALUE(CUDA_ERROR_ILLEGAL_ADDRESS)
PENSTOCK_SAME_VALUE(CUDA_ERROR_CONTEXT_IS_DESTROYED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_LAUNCH_FAILED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_NOT_PERMITTED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_NOT_SUPPORTED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_SYSTEM_NOT_READY)
PENSTOCK_SAME_VALUE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
PENSTOCK_SAME_VALUE(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)
PENSTOCK_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
PENSTOCK_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
PENSTOCK_SAME_VALUE(CUDA_ERROR_CAPTURED_EVENT)
PENSTOCK_SAME_VALUE(CUDA_ERROR_UNKNOWN)
PENSTOCK_SAME_VALUE(CU_DEVICE_ATTRIBUTE_INTEGRATED)
PENSTOCK_SAME_VALUE(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)
PENSTOCK_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
PENSTOCK_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
PENSTOCK_SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)
PENSTOCK_SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_CONTEXT)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_HOST_POINTER)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_MANAGED)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_RANGE_SIZE)
PENSTOCK_SAME_VALUE(CU_POINTER_ATTRIBUTE_MAPPED)
PENSTOCK_SAME_VALUE(CU_MEMORYTYPE_HOST)
PENSTOCK_SAME_VALUE(CU_MEMORYTYPE_DEVICE)
PENSTOCK_SAME_VALUE(CU_MEMORYTYPE_ARRAY)
PENSTOCK_SAME_VALUE(CU_MEMORYTYPE_UNIFIED)
PENSTOCK_SAME_VALUE(CU_MEM_LOCATION_TYPE_INVALID)
PENSTOCK_SAME_VALUE(CU_MEM_LOCATION_TYPE_DEVICE)
PENSTOCK_SAME_VALUE(CU_MEM_LOCATION_TYPE_HOST)
PENSTOCK_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_NONE)
PENSTOCK_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE)
PENSTOCK_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_INVALIDATED)
PENSTOCK_SAME_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL)
PENSTOCK_SAME_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
PENSTOCK_SAME_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED)
PENSTOCK_SAME_VALUE(CU_GET_PROC_ADDRESS_SUCCESS)
PENSTOCK_SAME_VALUE(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
PENSTOCK_SAME_VALUE(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)

// The layout of what is passed by address.
static_assert(sizeof(cuda::CUuuid) == sizeof(::CUuuid));
static_assert(sizeof(cuda::CUmemLocation) == sizeof(::CUmemLocation));
static_assert(offsetof(cuda::CUmemLocation, type) == offsetof(::CUmemLocation, type));
static_assert(offsetof(cuda::CUmemLocation, id) == offsetof(::CUmemLocation, id));
#if CUDA_VERSION >= 12080
PENSTOCK_SAME_ENUM(CUmemcpySrcAccessOrder)
PENSTOCK_SAME_VALUE(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
PENSTOCK_SAME_VALUE(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
PENSTOCK_SAME_VALUE(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
static_assert(sizeof(cuda::CUmemcpyAttributes) == sizeof(::CUmemcpyAttributes));
#define PENSTOCK_SAME_OFFSET(member)                            \
    static_assert(offsetof(cuda::CUmemcpyAttributes, member) == \
                  offsetof(::CUmemcpyAttributes, member));
PENSTOCK_SAME_OFFSET(srcAccessOrder)
PENSTOCK_SAME_OFFSET(srcLocHint)
PENSTOCK_SAME_OFFSET(dstLocHint)
PENSTOCK_SAME_OFFSET(flags)
#endif

// Flags, and the two streams that every context has.
static_assert(cuda::CU_GET_PROC_ADDRESS_LEGACY_STREAM == ::CU_GET_PROC_ADDRESS_LEGACY_STREAM);
static_assert(kOurPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cuda::CU_STREAM_NON_BLOCKING == ::CU_STREAM_NON_BLOCKING);
static_assert(cuda::CU_EVENT_DISABLE_TIMING == ::CU_EVENT_DISABLE_TIMING);
static_assert(cuda::CU_EVENT_WAIT_DEFAULT == ::CU_EVENT_WAIT_DEFAULT);
static_assert(cuda::CU_MEM_ATTACH_GLOBAL == ::CU_MEM_ATTACH_GLOBAL);

}  // namespace
}  // namespace penstock::device::cuda

namespace penstock::device {

int PENSTOCK_COMPARED() {
    // Casts of integers to pointers are no constants.
    const bool same =
        reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY) == cuda::kOurStreamLegacy &&
        reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD) == cuda::kOurStreamPerThread;
    return same ? CUDA_VERSION : -1;
}

}  // namespace penstock::device

#else

int penstock::device::PENSTOCK_COMPARED() {
    return 0;
}

#endif
