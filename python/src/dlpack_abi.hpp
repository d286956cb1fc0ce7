// SPDX-License-Identifier: Apache-2.0
// The part of the DLPack 1.0 ABI that is exchanged here (https://dmlc.github.io/dlpack). Names of
// fields are theirs.
#pragma once

#include <cstdint>

namespace penstock::python::dlpack {

constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCuda = 2;
constexpr std::int32_t kCudaHost = 3;
constexpr std::int32_t kRocmHost = 11;
constexpr std::int32_t kCudaManaged = 13;

// Kinds of elements.
constexpr std::uint8_t kInt = 0;
constexpr std::uint8_t kUInt = 1;

constexpr std::uint64_t kFlagReadOnly = 1;
constexpr std::uint64_t kFlagIsCopied = 2;

struct Device {
    std::int32_t device_type;
    std::int32_t device_id;
};

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  ///< in elements; nullptr: contiguous
    std::uint64_t byte_offset;
};

struct ManagedTensor {
    Tensor dl_tensor;
    void* manager_ctx;
    void (*deleter)(ManagedTensor* self);
};

struct Version {
    std::uint32_t major;
    std::uint32_t minor;
};

struct ManagedTensorVersioned {
    Version version;
    void* manager_ctx;
    void (*deleter)(ManagedTensorVersioned* self);
    std::uint64_t flags;
    Tensor dl_tensor;
};

constexpr const char* kName = "dltensor";
constexpr const char* kNameVersioned = "dltensor_versioned";

}  // namespace penstock::python::dlpack
