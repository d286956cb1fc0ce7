// SPDX-License-Identifier: Apache-2.0
// Compiled once for each release of CUDA whose cufile.h the build finds: it compiles if all of
// cufile_abi.hpp is as NVIDIA has it. PENSTOCK_COMPARED is the function that says so.
#include "device/abi/cuda_headers.hpp"
#include "device/cufile/cufile_abi.hpp"

#include <cstddef>
#include <type_traits>

#ifdef PENSTOCK_CUFILE_HEADERS

// Ours, before a macro of NVIDIA's has the same name.
namespace penstock::device::cufile {
namespace {
constexpr int kOurBaseError = CUFILEOP_BASE_ERR;
}  // namespace
}  // namespace penstock::device::cufile

#include <cufile.h>

// NVIDIA's header defines the name of the newer form as a macro.
#undef cuFileDriverClose

namespace penstock::device::cufile {
namespace {

static_assert(kOurBaseError == CUFILEOP_BASE_ERR);

// The type of NVIDIA's for one of ours.
template <typename Our>
struct Their {
    using type = Our;
};
template <typename Our>
struct Their<Our*> {
    using type = typename Their<Our>::type*;
};
template <typename Result, typename... Arguments>
struct Their<Result(Arguments...)> {
    using type = typename Their<Result>::type(typename Their<Arguments>::type...);
};
template <typename Our>
using their = typename Their<Our>::type;

#define PENSTOCK_SAME_NAME(name) \
    template <>                  \
    struct Their<cufile::name> { \
        using type = ::name;     \
    };
PENSTOCK_SAME_NAME(CUfileError_t)
PENSTOCK_SAME_NAME(CUfileDescr_t)
PENSTOCK_SAME_NAME(CUfileDrvProps_t)
PENSTOCK_SAME_NAME(CUFileBoolConfigParameter_t)

// The macro is gone: cuFileDriverClose below is the older form, which has the same type.
#define PENSTOCK_SAME_CALL(name, symbol, ...) \
    static_assert(std::is_same_v<their<cufile::name##_type>, decltype(::name)>);
PENSTOCK_CUFILE_CALLS(PENSTOCK_SAME_CALL)
PENSTOCK_CUFILE_OPTIONAL_CALLS(PENSTOCK_SAME_CALL)
PENSTOCK_CUFILE_CALLS_OF_TESTS(PENSTOCK_SAME_CALL)

#define PENSTOCK_SAME_ENUM(name)                  \
    static_assert(                                \
        sizeof(cufile::name) == sizeof(::name) && \
        std::is_same_v<std::underlying_type_t<cufile::name>, std::underlying_type_t<::name>>);
#define PENSTOCK_SAME_VALUE(name) \
    static_assert(static_cast<long long>(cufile::name) == static_cast<long long>(::name));

PENSTOCK_SAME_ENUM(CUfileOpError)
PENSTOCK_SAME_ENUM(CUfileFileHandleType)
PENSTOCK_SAME_ENUM(CUFileBoolConfigParameter_t)

PENSTOCK_SAME_VALUE(CU_FILE_SUCCESS)
PENSTOCK_SAME_VALUE(CU_FILE_DRIVER_NOT_INITIALIZED)
PENSTOCK_SAME_VALUE(CU_FILE_DRIVER_VERSION_MISMATCH)
PENSTOCK_SAME_VALUE(CU_FILE_PLATFORM_NOT_SUPPORTED)
PENSTOCK_SAME_VALUE(CU_FILE_IO_NOT_SUPPORTED)
PENSTOCK_SAME_VALUE(CU_FILE_DEVICE_NOT_SUPPORTED)
PENSTOCK_SAME_VALUE(CU_FILE_NVFS_DRIVER_ERROR)
PENSTOCK_SAME_VALUE(CU_FILE_CUDA_DRIVER_ERROR)
PENSTOCK_SAME_VALUE(CU_FILE_CUDA_POINTER_INVALID)
PENSTOCK_SAME_VALUE(CU_FILE_CUDA_MEMORY_TYPE_INVALID)
PENSTOCK_SAME_VALUE(CU_FILE_CUDA_POINTER_RANGE_ERROR)
PENSTOCK_SAME_VALUE(CU_FILE_CUDA_CONTEXT_MISMATCH)
PENSTOCK_SAME_VALUE(CU_FILE_INVALID_FILE_TYPE)
PENSTOCK_SAME_VALUE(CU_FILE_INVALID_FILE_OPEN_FLAG)
PENSTOCK_SAME_VALUE(CU_FILE_DIO_NOT_SET)
PENSTOCK_SAME_VALUE(CU_FILE_INVALID_VALUE)
PENSTOCK_SAME_VALUE(CU_FILE_MEMORY_ALREADY_REGISTERED)
PENSTOCK_SAME_VALUE(CU_FILE_MEMORY_NOT_REGISTERED)
PENSTOCK_SAME_VALUE(CU_FILE_PERMISSION_DENIED)
PENSTOCK_SAME_VALUE(CU_FILE_DRIVER_ALREADY_OPEN)
PENSTOCK_SAME_VALUE(CU_FILE_HANDLE_NOT_REGISTERED)
PENSTOCK_SAME_VALUE(CU_FILE_HANDLE_ALREADY_REGISTERED)
PENSTOCK_SAME_VALUE(CU_FILE_DEVICE_NOT_FOUND)
PENSTOCK_SAME_VALUE(CU_FILE_INTERNAL_ERROR)
PENSTOCK_SAME_VALUE(CU_FILE_GETNEWFD_FAILED)
PENSTOCK_SAME_VALUE(CU_FILE_NVFS_SETUP_ERROR)
PENSTOCK_SAME_VALUE(CU_FILE_IO_DISABLED)
PENSTOCK_SAME_VALUE(CU_FILE_GPU_MEMORY_PINNING_FAILED)
PENSTOCK_SAME_VALUE(CU_FILE_HANDLE_TYPE_OPAQUE_FD)
PENSTOCK_SAME_VALUE(CU_FILE_ALLOW_COMPAT_MODE)
PENSTOCK_SAME_VALUE(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE)
PENSTOCK_SAME_VALUE(CUFILE_PARAM_FORCE_COMPAT_MODE)
PENSTOCK_SAME_VALUE(CUFILE_PARAM_USE_PCIP2PDMA)

// The layout of what is passed by address or returned.
#define PENSTOCK_SAME_OFFSET(type, member)                                      \
    static_assert(offsetof(cufile::type, member) == offsetof(::type, member) && \
                  sizeof(cufile::type::member) == sizeof(::type::member));
static_assert(sizeof(cufile::CUfileError_t) == sizeof(::CUfileError_t));
PENSTOCK_SAME_OFFSET(CUfileError_t, err)
PENSTOCK_SAME_OFFSET(CUfileError_t, cu_err)
static_assert(sizeof(cufile::CUfileDescr_t) == sizeof(::CUfileDescr_t));
PENSTOCK_SAME_OFFSET(CUfileDescr_t, type)
PENSTOCK_SAME_OFFSET(CUfileDescr_t, handle.fd)
PENSTOCK_SAME_OFFSET(CUfileDescr_t, fs_ops)
static_assert(sizeof(cufile::CUfileDrvProps_t) == sizeof(::CUfileDrvProps_t));
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, nvfs.major_version)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, nvfs.minor_version)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, nvfs.poll_thresh_size)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, nvfs.max_direct_io_size)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, nvfs.dstatusflags)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, nvfs.dcontrolflags)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, fflags)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, max_device_cache_size)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, per_buffer_cache_size)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, max_device_pinned_mem_size)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, max_batch_io_size)
PENSTOCK_SAME_OFFSET(CUfileDrvProps_t, max_batch_io_timeout_msecs)

}  // namespace
}  // namespace penstock::device::cufile

int penstock::device::PENSTOCK_COMPARED() {
    return CUDA_VERSION;
}

#else

int penstock::device::PENSTOCK_COMPARED() {
    return 0;
}

#endif
