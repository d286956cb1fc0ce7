// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU for the jobs that move bytes to and from it: the driver's own calls, for the
// library gives no memory of a GPU. --gpu=PATH names the driver's library, NVIDIA's or the fake's.
#pragma once

#include "common.hpp"
#include "fake_gpu/control.hpp"

#include <penstock/penstock.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::benchmarks {

using AnyMemory = penstock::Memory;  ///< of the host or of a GPU

/// GPU 0, with its primary context current on the thread that made this. Throws CannotRun where
/// there is no driver or no GPU. `--copy_rate=B` (bytes a second of each copy engine) is for the
/// fake alone.
class Gpu {
public:
    explicit Gpu(const Arguments& arguments);
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;
    ~Gpu();

    /// Memory of the GPU that holds bytes of host memory; freed with this.
    [[nodiscard]] AnyMemory allocate(std::uint64_t bytes);
    /// Locks host memory until this ends.
    void pin(std::byte* memory, std::uint64_t bytes);
    void copy(void* device, void* host, std::uint64_t bytes, bool to_device);
    /// Copies pinned memory in, on a stream of its own, and waits for an event after the copy.
    void copy_after_event(void* device, const void* host, std::uint64_t bytes);
    void synchronise();
    /// Seconds that copies of `bytes` of pinned memory take, `block` a copy, all of them queued on
    /// one stream.
    [[nodiscard]] double copy_seconds(std::uint64_t bytes, std::uint64_t block, bool to_device);

    /// The fake's controls; nothing where a GPU is real.
    [[nodiscard]] const std::optional<fake_gpu::FakeGpu>& fake() const { return fake_; }
    /// CPU seconds of the fake's own threads so far, 0 of a real GPU.
    [[nodiscard]] double fake_cpu_s() const;
    /// Notes the GPU, and whether it is the fake.
    void report(Figures& figures) const;

private:
    template <typename Function>
    Function* find(const char* name) const;

    void* library_ = nullptr;
    std::optional<fake_gpu::FakeGpu> fake_;
    std::vector<std::uint64_t> allocated_;
    std::vector<void*> pinned_;
    void* stream_ = nullptr;
    void* event_ = nullptr;
    std::string name_;
};

}  // namespace penstock::benchmarks
