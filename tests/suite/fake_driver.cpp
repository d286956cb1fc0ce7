// SPDX-License-Identifier: Apache-2.0
#include "suite/fake_driver.hpp"

#include "base/raise.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>

namespace penstock::suite {

namespace {

// By its full name, so that all who open "libcuda.so.1" later get it.
[[gnu::constructor]] void load_fake() {
    if (on_installed_driver()) {
        return;
    }
    ::setenv("FAKE_GPU_DEVICES", std::to_string(kFakeGpus).c_str(), 1);
    ::dlopen(PENSTOCK_FAKE_GPU, RTLD_LAZY | RTLD_LOCAL);
}

void check(bool done, const char* what) {
    if (!done) {
        throw std::runtime_error(what);
    }
}

// A copy of the installed driver's, through to its end.
void copy_whole(std::int32_t gpu, std::byte* device, void* into, const void* from,
                std::size_t bytes) {
    const device::Driver& driver = *base::unwrap(device::driver());
    const device::Current current(driver, base::unwrap(device::primary_context(driver, gpu)));
    const auto address = reinterpret_cast<device::cuda::CUdeviceptr>(device);
    const auto result = into != nullptr ? driver.cuMemcpyDtoHAsync(into, address, bytes, nullptr)
                                        : driver.cuMemcpyHtoDAsync(address, from, bytes, nullptr);
    check(result == device::cuda::CUDA_SUCCESS, "cuMemcpyAsync");
    while (driver.cuStreamQuery(nullptr) == device::cuda::CUDA_ERROR_NOT_READY) {
    }
    check(driver.cuStreamQuery(nullptr) == device::cuda::CUDA_SUCCESS, "cuStreamQuery");
}

}  // namespace

bool on_installed_driver() {
    return std::getenv("PENSTOCK_TEST_REAL_GPU") != nullptr;
}

std::int32_t suite_gpus() {
    if (!on_installed_driver()) {
        return kFakeGpus;
    }
    const auto driver = device::driver();
    return driver ? std::min((*driver)->gpus, std::int32_t{kFakeGpus}) : 0;
}

fake_gpu::FakeGpu& fake_driver() {
    static std::optional<fake_gpu::FakeGpu> fake = fake_gpu::FakeGpu::find();
    check(fake.has_value(), "the fake driver is not loaded");
    return *fake;
}

DeviceBytes::DeviceBytes(std::int32_t gpu, std::size_t bytes) : gpu_(gpu), bytes_(bytes) {
    const device::Driver& driver = *base::unwrap(device::driver());
    const device::Current current(driver, base::unwrap(device::primary_context(driver, gpu)));
    device::cuda::CUdeviceptr address = 0;
    check(driver.cuMemAlloc(&address, bytes) == device::cuda::CUDA_SUCCESS, "cuMemAlloc");
    data_ = reinterpret_cast<std::byte*>(address);
}

DeviceBytes::DeviceBytes(std::int32_t gpu, std::span<const std::byte> content)
    : DeviceBytes(gpu, content.size()) {
    put(content);
}

DeviceBytes::~DeviceBytes() {
    const device::Driver& driver = *base::unwrap(device::driver());
    const device::Current current(driver, base::unwrap(device::primary_context(driver, gpu_)));
    driver.cuMemFree(reinterpret_cast<device::cuda::CUdeviceptr>(data_));
}

std::vector<std::byte> DeviceBytes::look() const {
    std::vector<std::byte> found(bytes_);
    if (on_installed_driver()) {
        copy_whole(gpu_, data_, found.data(), nullptr, bytes_);
        return found;
    }
    check(fake_driver().look(reinterpret_cast<std::uint64_t>(data_), found.data(), bytes_), "look");
    return found;
}

void DeviceBytes::put(std::span<const std::byte> content) const {
    if (on_installed_driver()) {
        copy_whole(gpu_, data_, nullptr, content.data(), content.size());
        return;
    }
    check(fake_driver().put(reinterpret_cast<std::uint64_t>(data_), content.data(), content.size()),
          "put");
}

}  // namespace penstock::suite
