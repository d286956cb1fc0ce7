// SPDX-License-Identifier: Apache-2.0
// What a test of streamed weights runs over: units and experts that are used on the host, on a GPU
// (the fake driver), and on a GPU with pinned memory of the host below it.
#pragma once

#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "fake_gpu/control.hpp"

#include <penstock/memory.hpp>
#include <penstock/types.hpp>
#include <penstock/weights.hpp>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::weights {

enum class Where : std::uint8_t { kHost, kGpu, kPinned };

inline std::string name_of(const testing::TestParamInfo<Where>& info) {
    return info.param == Where::kHost ? "Host" : info.param == Where::kGpu ? "Gpu" : "Pinned";
}

inline auto each_memory() {
    return testing::Values(Where::kHost, Where::kGpu, Where::kPinned);
}

/// A stream of a caller on the fake GPU.
class FakeStream {
public:
    FakeStream() {
        ::dlopen(PENSTOCK_FAKE_GPU, RTLD_LAZY | RTLD_LOCAL);
        fake_ = fake_gpu::FakeGpu::find();
        EXPECT_TRUE(fake_.has_value()) << "the fake driver is not loaded: " << PENSTOCK_FAKE_GPU;
        fake_->calm();
        driver_ = device::driver().value();
        context_ = device::primary_context(*driver_, 0).value();
        const device::Current current(*driver_, context_);
        EXPECT_EQ(driver_->cuStreamCreate(&stream_, device::cuda::CU_STREAM_NON_BLOCKING),
                  device::cuda::CUDA_SUCCESS);
    }
    FakeStream(const FakeStream&) = delete;
    FakeStream& operator=(const FakeStream&) = delete;
    ~FakeStream() {
        fake_->calm();
        synchronize();
        const device::Current current(*driver_, context_);
        driver_->cuStreamDestroy(stream_);
    }
    [[nodiscard]] StreamHandle handle() const {
        return {.handle = reinterpret_cast<std::uintptr_t>(stream_)};
    }
    void synchronize() {
        const device::Current current(*driver_, context_);
        while (driver_->cuStreamQuery(stream_) == device::cuda::CUDA_ERROR_NOT_READY) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }
    /// Returns what the stream sees in memory of the GPU, once all on it is done.
    [[nodiscard]] std::vector<std::byte> read(const ConstMemory& memory) {
        const Region out = Region::pinned(memory.bytes, 0);
        copy_out(memory, out.data());
        synchronize();
        return {out.data(), out.data() + out.size()};
    }
    /// Copies what the stream sees when it comes to it; `to` is pinned.
    void copy_out(const ConstMemory& memory, std::byte* to) {
        const device::Current current(*driver_, context_);
        EXPECT_EQ(driver_->cuMemcpyDtoHAsync(to, reinterpret_cast<std::uintptr_t>(memory.data),
                                             memory.bytes, stream_),
                  device::cuda::CUDA_SUCCESS);
    }
    [[nodiscard]] fake_gpu::FakeGpu& fake() { return *fake_; }

private:
    std::optional<fake_gpu::FakeGpu> fake_;
    const device::Driver* driver_ = nullptr;
    device::cuda::CUcontext context_ = nullptr;
    device::cuda::CUstream stream_ = nullptr;
};

class InEachMemory : public testing::TestWithParam<Where> {
protected:
    InEachMemory() {
        if (is_on_gpu()) {
            gpu_.emplace();
        }
    }
    [[nodiscard]] bool is_on_gpu() const { return GetParam() != Where::kHost; }
    [[nodiscard]] std::optional<std::int32_t> gpu() const {
        return is_on_gpu() ? std::optional(0) : std::nullopt;
    }
    [[nodiscard]] StreamHandle handle() const { return gpu_ ? gpu_->handle() : StreamHandle(); }
    /// The bytes that a user of the memory sees.
    [[nodiscard]] std::vector<std::byte> read(const ConstMemory& memory) {
        EXPECT_EQ(memory.kind, is_on_gpu() ? MemoryKind::kDevice : MemoryKind::kHost);
        if (gpu_ && memory.bytes != 0) {
            return gpu_->read(memory);
        }
        return {memory.data, memory.data + memory.bytes};
    }

    std::optional<FakeStream> gpu_;
};

}  // namespace penstock::weights
