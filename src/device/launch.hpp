// SPDX-License-Identifier: Apache-2.0
// Kernels: loaded from the PTX that is kept in src/kernels, once a GPU, and launched on streams of
// the caller. RowLaunch is the launch of the kernel that puts rows together.
#pragma once

#include "base/result.hpp"
#include "device/cuda/driver.hpp"
#include "kernels/copy_rows.hpp"

#include <penstock/gpu.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace penstock::device {

/// A kernel in the primary context of a GPU; the first call loads `file` of src/kernels/ptx. The
/// driver makes machine code of it then, which it keeps on disk. Lives until the process ends.
/// kUnsupported for a GPU before Turing (compute capability 7.5). Thread-safe.
[[nodiscard]] base::Result<cuda::CUfunction> kernel(const Driver& driver, std::int32_t device,
                                                    const char* file, const char* name);

/// Memory of a GPU, freed with this. Freeing waits for all work of the GPU.
class DeviceBlock {
public:
    DeviceBlock() = default;
    DeviceBlock(const DeviceBlock&) = delete;
    DeviceBlock& operator=(const DeviceBlock&) = delete;
    DeviceBlock(DeviceBlock&& other) noexcept;
    DeviceBlock& operator=(DeviceBlock&& other) noexcept;
    ~DeviceBlock() { free(); }

    /// kOutOfMemory where the GPU has not so many bytes.
    [[nodiscard]] static base::Result<DeviceBlock> make(std::int32_t device, std::uint64_t bytes);
    [[nodiscard]] Memory memory() const { return memory_; }
    [[nodiscard]] std::uint64_t address() const;

private:
    void free() noexcept;
    Memory memory_;
};

/// Memory of the host that GPUs reach: pinned and mapped as long as this lives. It is unregistered
/// before the memory goes.
class PinnedRange {
public:
    PinnedRange() = default;
    PinnedRange(const PinnedRange&) = delete;
    PinnedRange& operator=(const PinnedRange&) = delete;
    PinnedRange(PinnedRange&& other) noexcept;
    PinnedRange& operator=(PinnedRange&& other) noexcept;
    ~PinnedRange() { unpin(); }

    /// `device`: the GPU whose context does it; all GPUs reach the memory.
    [[nodiscard]] static base::Result<PinnedRange> make(std::int32_t device, std::byte* memory,
                                                        std::uint64_t bytes);
    /// As GPUs have it.
    [[nodiscard]] std::uint64_t address() const { return address_; }

private:
    void unpin() noexcept;
    std::byte* memory_ = nullptr;
    std::uint64_t address_ = 0;
    std::int32_t device_ = 0;
};

/// A launch: a list of rows, the kernel that copies them, and an event after it. Not thread-safe.
class RowLaunch {
public:
    RowLaunch(const RowLaunch&) = delete;
    RowLaunch& operator=(const RowLaunch&) = delete;
    ~RowLaunch();

    /// Entries that rows of so many bytes are.
    [[nodiscard]] static std::uint64_t entries(std::uint64_t rows, std::uint64_t row_bytes);
    /// Room for `entries`. Allocates pinned memory, so one is used again and again.
    [[nodiscard]] static base::Result<std::unique_ptr<RowLaunch>> make(std::int32_t device,
                                                                       std::uint64_t entries);
    [[nodiscard]] std::uint64_t room() const { return room_; }
    /// For another launch, when this one is over.
    void reset();
    /// A row. Before start(); no more than there is room for.
    void add(std::uint64_t from, std::uint64_t to, std::uint64_t bytes);
    /// Launches the kernel on `stream`, after what it holds. Once. kInvalidArgument where it is no
    /// stream, one of another context than the GPU's primary one, or captures a graph.
    [[nodiscard]] base::Result<void> start(const StreamHandle& stream);
    /// Entries that were added.
    [[nodiscard]] std::uint64_t size() const { return count_; }

    enum class State : std::uint8_t { kRunning, kDone, kFailed };
    /// Never blocks. kFailed: the GPU is in an error, or its context is gone.
    [[nodiscard]] State state() noexcept;
    /// The state after at most `limit`.
    [[nodiscard]] State wait(std::chrono::nanoseconds limit) noexcept;
    /// After kFailed.
    [[nodiscard]] base::Error error() const noexcept;

private:
    RowLaunch(const Driver& driver, cuda::CUcontext context, std::int32_t device);
    [[nodiscard]] base::Result<void> check(const StreamHandle& stream) const;

    const Driver& driver_;
    cuda::CUcontext context_;
    std::int32_t device_;
    cuda::CUfunction function_ = nullptr;
    cuda::CUevent event_ = nullptr;
    cuda::CUstream stream_ = nullptr;
    kernels::RowCopy* rows_ = nullptr;
    std::uint64_t room_ = 0;
    std::uint64_t count_ = 0;
    bool queued_ = false;    ///< the GPU may be reading the list
    bool recorded_ = false;  ///< the event says when it is not
    cuda::CUresult result_ = cuda::CUDA_SUCCESS;
};

}  // namespace penstock::device
