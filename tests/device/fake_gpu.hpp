// SPDX-License-Identifier: Apache-2.0
// The tests of device/ run on the fake libcuda.so.1, which is loaded by its full name before
// main(): each later open of "libcuda.so.1" gets it, and NVIDIA's driver is never touched.
#pragma once

#include "device/cuda/cuda_abi.hpp"
#include "device/cuda/driver.hpp"
#include "fake_gpu/control.hpp"

#include <penstock/types.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::device {

/// Runs the test `name` ("Suite.DISABLED_Name", more with a colon between them) of this program in
/// a process of its own with more environment ("FAKE_GPU_STUB=1"), and says whether it passed.
[[nodiscard]] ::testing::AssertionResult runs_alone(const std::string& name,
                                                    const std::vector<std::string>& environment);

/// Keeps the fake out of such a process, so that libcuda.so.1 is looked for as on any machine.
inline constexpr const char* kWithoutFake = "PENSTOCK_TEST_WITHOUT_FAKE_GPU=1";
/// The folder of the fake: of the build, or $PENSTOCK_FAKE_GPU.
[[nodiscard]] std::string fake_folder();

/// A test with a driver, a fake that is calm at its begin and end, and memory on GPU 0.
class OnFakeGpu : public ::testing::Test {
protected:
    void SetUp() override;
    void TearDown() override;

    /// Freed at the end of the test.
    [[nodiscard]] cuda::CUdeviceptr device_bytes(std::uint64_t bytes, std::int32_t gpu = 0);
    void put(cuda::CUdeviceptr to, const std::vector<std::byte>& bytes);
    [[nodiscard]] std::vector<std::byte> look(cuda::CUdeviceptr from, std::uint64_t bytes);

    const Driver* driver_ = nullptr;
    std::optional<fake_gpu::FakeGpu> fake_;
    std::vector<std::pair<std::int32_t, cuda::CUdeviceptr>> memory_;
};

/// A stream of GPU 0 with work that ends with end(), or when this does.
class BusyStream {
public:
    explicit BusyStream(const Driver& driver);
    BusyStream(const BusyStream&) = delete;
    BusyStream& operator=(const BusyStream&) = delete;
    ~BusyStream();

    void end();
    /// Options of a transfer that begins after it.
    [[nodiscard]] TransferOptions after() const;
    /// CUDA may destroy a stream that has work.
    void destroy();

private:
    const Driver& driver_;
    cuda::CUstream stream_ = nullptr;
    bool destroyed_ = false;
    std::atomic<bool> busy_{true};
    std::atomic<bool> ended_{false};
};

/// A call of the driver that Penstock does not use.
template <typename Call>
[[nodiscard]] Call* other_call(const char* name) {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    return reinterpret_cast<Call*>(::dlsym(library, name));
}

}  // namespace penstock::device
