// SPDX-License-Identifier: Apache-2.0
#include "features/ring_memory.hpp"

#include "base/raise.hpp"
#include "device/context.hpp"
#include "device/driver.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace penstock::features {

namespace {

using namespace device::cuda;

void expect(const device::Driver& driver, CUresult result, const char* call, std::int32_t gpu) {
    if (result != CUDA_SUCCESS) {
        base::raise(
            device::cuda_error(driver, result, call, "serve_rows", fmt::format("GPU {}", gpu)));
    }
}

}  // namespace

RingMemory::RingMemory(std::uint64_t bytes, std::int32_t gpu)
    : pool_(MemoryOptions{.kept_bytes_max = 0}), buffer_(pool_.take(bytes)), gpu_(gpu) {
    std::memset(buffer_.data(), 0, bytes);
    if (::madvise(buffer_.data(), bytes, MADV_WIPEONFORK) != 0) {
        base::raise(base::system_error(errno, "madvise", "MADV_WIPEONFORK"));
    }
    if (gpu >= 0) {
        map(bytes);
    }
}

void RingMemory::map(std::uint64_t bytes) {
    const device::Driver& driver = *base::unwrap(device::driver());
    const device::Current current(driver, base::unwrap(device::primary_context(driver, gpu_)));
    expect(driver, current.result(), "cuCtxPushCurrent", gpu_);
    expect(driver, driver.cuMemHostRegister(data(), bytes, CU_MEMHOSTREGISTER_PORTABLE),
           "cuMemHostRegister", gpu_);
    CUdeviceptr address = 0;
    const CUresult result = driver.cuPointerGetAttribute(
        &address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, reinterpret_cast<std::uintptr_t>(data()));
    if (result != CUDA_SUCCESS) {
        driver.cuMemHostUnregister(data());
        expect(driver, result, "cuPointerGetAttribute", gpu_);
    }
    gpu_data_ = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

// Memory must not stay registered after it is unmapped.
RingMemory::~RingMemory() {
    if (gpu_data_ == nullptr || !device::may_call_driver()) {
        return;
    }
    const device::Driver* const driver = device::loaded_driver();
    if (driver == nullptr) {
        return;
    }
    const auto context = device::primary_context(*driver, gpu_);
    if (context) {
        const device::Current current(*driver, *context);
        if (driver->cuMemHostUnregister(data()) != CUDA_SUCCESS) {
            driver->cuMemHostUnregister(data());
        }
    }
}

}  // namespace penstock::features
