// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/pointer.hpp"
#include "device/cufile/cufile_conditions.hpp"
#include "os/file_system_type.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <array>
#include <cerrno>
#include <optional>

namespace penstock {

namespace {

using device::Driver;
using namespace device::cuda;

int attribute(const Driver& driver, CUdevice_attribute which, CUdevice number, int otherwise) {
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, which, number) == CUDA_SUCCESS ? value : otherwise;
}

Gpu facts_of(const Driver& driver, std::int32_t index) {
    Gpu gpu;
    gpu.number = index;
    CUdevice number = 0;
    if (driver.cuDeviceGet(&number, index) != CUDA_SUCCESS) {
        return gpu;
    }
    std::array<char, 256> text{};
    if (driver.cuDeviceGetName(text.data(), static_cast<int>(text.size()) - 1, number) ==
        CUDA_SUCCESS) {
        gpu.name = text.data();
    }
    text = {};
    if (driver.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, number) ==
        CUDA_SUCCESS) {
        gpu.pci = text.data();
    }
    std::size_t bytes = 0;
    if (driver.cuDeviceTotalMem(&bytes, number) == CUDA_SUCCESS) {
        gpu.memory_bytes = bytes;
    }
    gpu.compute_major = attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, number, 0);
    gpu.compute_minor = attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, number, 0);
    gpu.numa_node = attribute(driver, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, number, -1);
    gpu.cufile = device::report_of(device::cufile_conditions(gpu, driver.version, std::nullopt));
    return gpu;
}

}  // namespace

GpuReport gpus() noexcept {
    GpuReport report;
    try {
        auto found = device::driver();
        if (!found) {
            report.reason = found.error().message.empty() ? found.error().describe()
                                                          : std::move(found.error().message);
            return report;
        }
        const Driver& driver = **found;
        report.driver_version = driver.version;
        report.library = driver.library;
        for (std::int32_t index = 0; index < driver.gpus; ++index) {
            report.gpus.push_back(facts_of(driver, index));
        }
        if (driver.cuMemcpyBatchAsync == nullptr) {
            report.missing_features.emplace_back(
                "several copies in one call (cuMemcpyBatchAsync, CUDA 12.8): transfers of many "
                "small pieces cost more processor time");
        }
        report.available = true;
    } catch (...) {
        report = {};  // no memory for the texts, so few words
        report.reason = "out of memory";
    }
    return report;
}

std::int32_t gpu_count() noexcept {
    try {
        const auto found = device::driver();
        return found ? (*found)->gpus : 0;
    } catch (...) {
        return 0;  // no memory
    }
}

std::uint64_t free_gpu_memory(std::int32_t device) {
    const Driver& driver = *base::unwrap(device::driver());
    const device::Current current(driver, base::unwrap(device::primary_context(driver, device)));
    std::size_t unused = 0;
    std::size_t total = 0;
    const bool is_current = current.result() == CUDA_SUCCESS;
    const CUresult result = is_current ? driver.cuMemGetInfo(&unused, &total) : current.result();
    if (result != CUDA_SUCCESS) {
        base::raise(device::cuda_error(driver, result,
                                       is_current ? "cuMemGetInfo" : "cuCtxPushCurrent", "gpu",
                                       fmt::format("the free memory of GPU {}", device)));
    }
    return unused;
}

CuFileReport cufile_conditions(const Gpu& gpu, const std::string& path) {
    struct stat status {};
    struct statfs volume {};
    if (::stat(path.c_str(), &status) != 0 || ::statfs(path.c_str(), &volume) != 0) {
        base::raise(base::system_error(errno, "cufile", path, kNoOffset,
                                       "name a file or folder that is there"));
    }
    const Driver* loaded = device::loaded_driver();
    const device::FilePlace place{
        {gnu_dev_major(status.st_dev), gnu_dev_minor(status.st_dev)},
        os::file_system_type(static_cast<std::uint64_t>(volume.f_type)).name};
    return device::report_of(
        device::cufile_conditions(gpu, loaded == nullptr ? 0 : loaded->version, place));
}

Memory device_memory(void* pointer, std::uint64_t bytes) {
    return base::unwrap(device::memory_at(pointer, bytes));
}

}  // namespace penstock
