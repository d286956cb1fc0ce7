// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU and of the host that is pinned for it, and a stream of our own that copies from
// one to the other, after what a stream of the caller's holds and before what comes on it next. No
// call here waits for the GPU, but for the end of what is destroyed.
#pragma once

#include "base/result.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "memory/block.hpp"

#include <penstock/gpu.hpp>

#include <cstdint>
#include <memory>

namespace penstock::device {

/// Memory of a GPU, freed at its end.
class GpuBytes {
public:
    /// kOutOfMemory, with the size, where the GPU has no room.
    [[nodiscard]] static base::Result<std::shared_ptr<GpuBytes>> make(std::int32_t device,
                                                                      std::uint64_t bytes);
    GpuBytes(const GpuBytes&) = delete;
    GpuBytes& operator=(const GpuBytes&) = delete;
    ~GpuBytes();

    /// An address of the GPU, at a multiple of 256; the host cannot read it.
    [[nodiscard]] std::byte* data() const { return data_; }

private:
    GpuBytes(const Driver& driver, cuda::CUcontext context) : driver_(driver), context_(context) {}

    const Driver& driver_;
    cuda::CUcontext context_;
    std::byte* data_ = nullptr;
};

/// Pinned memory of the host, so that copies of it run without the CPU.
class PinnedBytes {
public:
    /// kOutOfMemory or kSystem where it cannot be pinned, with the limit and what to do.
    [[nodiscard]] static base::Result<std::unique_ptr<PinnedBytes>> make(std::int32_t device,
                                                                         std::uint64_t bytes);
    PinnedBytes(const PinnedBytes&) = delete;
    PinnedBytes& operator=(const PinnedBytes&) = delete;
    ~PinnedBytes();

    [[nodiscard]] std::byte* data() const { return block_.data(); }

private:
    PinnedBytes(const Driver& driver, cuda::CUcontext context)
        : driver_(driver), context_(context) {}

    const Driver& driver_;
    cuda::CUcontext context_;
    memory::Block block_;
    bool is_pinned_ = false;
};

/// A stream of our own. One thread at a time.
class GpuLane {
public:
    [[nodiscard]] static base::Result<std::unique_ptr<GpuLane>> make(std::int32_t device);
    GpuLane(const GpuLane&) = delete;
    GpuLane& operator=(const GpuLane&) = delete;
    /// Work that is on it still runs to its end.
    ~GpuLane();

    /// For TransferOptions::streams: a transfer that begins after this lane.
    [[nodiscard]] StreamHandle handle() const;
    /// Puts a copy from pinned memory on the lane.
    [[nodiscard]] base::Result<void> copy_in(std::byte* to, const std::byte* from,
                                             std::uint64_t bytes);
    /// Work that comes on the lane from here on waits for what `stream` holds now.
    [[nodiscard]] base::Result<void> wait_for(const StreamHandle& stream);
    /// Work that comes on `stream` from here on waits for what the lane holds now.
    [[nodiscard]] base::Result<void> hold_up(const StreamHandle& stream);
    /// Waits until all on it is done; false when the time is over, or the GPU does not answer.
    [[nodiscard]] bool wait_until_idle(std::int64_t nanoseconds) noexcept;

private:
    GpuLane(const Driver& driver, cuda::CUcontext context, std::int32_t device)
        : driver_(driver), context_(context), device_(device) {}
    [[nodiscard]] base::Result<void> order(cuda::CUstream first, cuda::CUstream second,
                                           cuda::CUevent event, const StreamHandle& stream);

    const Driver& driver_;
    cuda::CUcontext context_;
    std::int32_t device_;
    cuda::CUstream stream_ = nullptr;
    cuda::CUevent theirs_ = nullptr;  ///< recorded on streams of the caller's
    cuda::CUevent ours_ = nullptr;    ///< recorded on ours
};

}  // namespace penstock::device
