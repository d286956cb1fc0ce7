// SPDX-License-Identifier: Apache-2.0
// The suite's GPUs: two of the fake driver, which is loaded before main(); with
// PENSTOCK_TEST_REAL_GPU=1 those of the driver that is installed. Memory of theirs that the host
// cannot touch.
#pragma once

#include "fake_gpu/control.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::suite {

inline constexpr std::int32_t kFakeGpus = 2;

/// The controls of the driver, calm.
[[nodiscard]] fake_gpu::FakeGpu& fake_driver();

/// The driver is the installed one: it has none of the fake's controls.
[[nodiscard]] bool on_installed_driver();
/// How many GPUs there are: those of the fake, or of the installed driver (0: it has none).
[[nodiscard]] std::int32_t suite_gpus();

/// Memory of one GPU, freed at the end.
class DeviceBytes {
public:
    DeviceBytes(std::int32_t gpu, std::size_t bytes);
    explicit DeviceBytes(std::int32_t gpu, std::span<const std::byte> content);
    DeviceBytes(const DeviceBytes&) = delete;
    DeviceBytes& operator=(const DeviceBytes&) = delete;
    ~DeviceBytes();

    /// Its address: nothing may be read or written there.
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::int32_t gpu() const { return gpu_; }
    [[nodiscard]] std::vector<std::byte> look() const;
    void put(std::span<const std::byte> content) const;

private:
    std::int32_t gpu_;
    std::size_t bytes_;
    std::byte* data_ = nullptr;
};

}  // namespace penstock::suite
