// SPDX-License-Identifier: Apache-2.0
// The part of cuFile's binary interface (GPUDirect Storage) that Penstock uses, in our own words,
// so that a build needs no header of NVIDIA's. Names and values are NVIDIA's;
// tests/device/cuda_abi_test.cpp compares each with the headers of CUDA 12 and 13. Nothing here is
// a symbol: cufile_library.hpp asks libcufile.so.0 for the calls at run time.
#pragma once

#include "device/cuda/cuda_abi.hpp"

#include <sys/types.h>

#include <cstddef>

namespace penstock::device::cufile {

using CUresult = cuda::CUresult;
using CUfileHandle_t = void*;

/// Results of calls, and negated, of reads and writes. Below CUFILEOP_BASE_ERR it is an errno.
inline constexpr int CUFILEOP_BASE_ERR = 5000;
enum CUfileOpError : unsigned int {
    CU_FILE_SUCCESS = 0,
    CU_FILE_DRIVER_NOT_INITIALIZED = 5001,
    CU_FILE_DRIVER_VERSION_MISMATCH = 5004,
    CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
    CU_FILE_IO_NOT_SUPPORTED = 5008,
    CU_FILE_DEVICE_NOT_SUPPORTED = 5009,
    CU_FILE_NVFS_DRIVER_ERROR = 5010,
    CU_FILE_CUDA_DRIVER_ERROR = 5011,
    CU_FILE_CUDA_POINTER_INVALID = 5012,
    CU_FILE_CUDA_MEMORY_TYPE_INVALID = 5013,
    CU_FILE_CUDA_POINTER_RANGE_ERROR = 5014,
    CU_FILE_CUDA_CONTEXT_MISMATCH = 5015,
    CU_FILE_INVALID_FILE_TYPE = 5018,
    CU_FILE_INVALID_FILE_OPEN_FLAG = 5019,
    CU_FILE_DIO_NOT_SET = 5020,
    CU_FILE_INVALID_VALUE = 5022,
    CU_FILE_MEMORY_ALREADY_REGISTERED = 5023,
    CU_FILE_MEMORY_NOT_REGISTERED = 5024,
    CU_FILE_PERMISSION_DENIED = 5025,
    CU_FILE_DRIVER_ALREADY_OPEN = 5026,
    CU_FILE_HANDLE_NOT_REGISTERED = 5027,
    CU_FILE_HANDLE_ALREADY_REGISTERED = 5028,
    CU_FILE_DEVICE_NOT_FOUND = 5029,
    CU_FILE_INTERNAL_ERROR = 5030,
    CU_FILE_GETNEWFD_FAILED = 5031,
    CU_FILE_NVFS_SETUP_ERROR = 5033,
    CU_FILE_IO_DISABLED = 5034,
    CU_FILE_GPU_MEMORY_PINNING_FAILED = 5036,
};

struct CUfileError_t {
    CUfileOpError err;
    CUresult cu_err;
};

enum CUfileFileHandleType : unsigned int { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 };

/// An argument of cuFileHandleRegister.
struct CUfileDescr_t {
    CUfileFileHandleType type;
    union {
        int fd;
        void* handle;
    } handle;
    const void* fs_ops;  ///< for file systems of the program's own: null
};

/// The answer of cuFileDriverGetProperties.
struct CUfileDrvProps_t {
    struct {
        unsigned int major_version;  ///< of nvidia-fs
        unsigned int minor_version;
        std::size_t poll_thresh_size;
        std::size_t max_direct_io_size;  ///< in KiB
        unsigned int dstatusflags;       ///< bits of CUfileDriverStatusFlags_t
        unsigned int dcontrolflags;      ///< bits of CUfileDriverControlFlags_t
    } nvfs;
    unsigned int fflags;
    unsigned int max_device_cache_size;
    unsigned int per_buffer_cache_size;
    unsigned int max_device_pinned_mem_size;
    unsigned int max_batch_io_size;
    unsigned int max_batch_io_timeout_msecs;
};

enum CUfileDriverControlFlags : unsigned int { CU_FILE_ALLOW_COMPAT_MODE = 1 };

enum CUFileBoolConfigParameter_t : unsigned int {
    CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1,
    CUFILE_PARAM_FORCE_COMPAT_MODE = 2,
    CUFILE_PARAM_USE_PCIP2PDMA = 7,
};

}  // namespace penstock::device::cufile

// CALL(name, the name of its symbol, its type). Every libcufile.so.0 has these.
#define PENSTOCK_CUFILE_CALLS(CALL)                                                              \
    CALL(cuFileDriverOpen, cuFileDriverOpen, CUfileError_t())                                    \
    CALL(cuFileDriverGetProperties, cuFileDriverGetProperties, CUfileError_t(CUfileDrvProps_t*)) \
    CALL(cuFileHandleRegister, cuFileHandleRegister,                                             \
         CUfileError_t(CUfileHandle_t* made, CUfileDescr_t* of))                                 \
    CALL(cuFileHandleDeregister, cuFileHandleDeregister, void(CUfileHandle_t handle))            \
    CALL(cuFileRead, cuFileRead,                                                                 \
         ssize_t(CUfileHandle_t handle, void* base, std::size_t bytes, off_t file_offset,        \
                 off_t memory_offset))                                                           \
    CALL(cuFileWrite, cuFileWrite,                                                               \
         ssize_t(CUfileHandle_t handle, const void* base, std::size_t bytes, off_t file_offset,  \
                 off_t memory_offset))

// An older one may lack these: a null pointer then.
#define PENSTOCK_CUFILE_OPTIONAL_CALLS(CALL)                              \
    CALL(cuFileGetVersion, cuFileGetVersion, CUfileError_t(int* version)) \
    CALL(cuFileUseCount, cuFileUseCount, long())                          \
    CALL(cuFileSetParameterBool, cuFileSetParameterBool,                  \
         CUfileError_t(CUFileBoolConfigParameter_t parameter, bool value))

// Tests ask for these; the library never does.
#define PENSTOCK_CUFILE_CALLS_OF_TESTS(CALL)                            \
    CALL(cuFileDriverClose, cuFileDriverClose_v2, CUfileError_t())      \
    CALL(cuFileBufRegister, cuFileBufRegister,                          \
         CUfileError_t(const void* base, std::size_t bytes, int flags)) \
    CALL(cuFileBufDeregister, cuFileBufDeregister, CUfileError_t(const void* base))

namespace penstock::device::cufile {

#define PENSTOCK_CUFILE_TYPE(name, symbol, ...) using name##_type = __VA_ARGS__;
PENSTOCK_CUFILE_CALLS(PENSTOCK_CUFILE_TYPE)
PENSTOCK_CUFILE_OPTIONAL_CALLS(PENSTOCK_CUFILE_TYPE)
PENSTOCK_CUFILE_CALLS_OF_TESTS(PENSTOCK_CUFILE_TYPE)
#undef PENSTOCK_CUFILE_TYPE

}  // namespace penstock::device::cufile
