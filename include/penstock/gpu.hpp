// SPDX-License-Identifier: Apache-2.0
// GPUs: the list of them, the GPU of an address, and the streams that a transfer begins after. One
// build serves machines with and without a GPU: the CUDA driver (libcuda.so.1) is opened at the
// first call that needs it, never by work on host memory.
#pragma once

#include <penstock/error.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

/// Whether cuFile (NVIDIA's GPUDirect Storage) can move bytes directly between storage and a GPU,
/// as far as this is known before it is opened. Its compatibility mode is never used.
struct CuFileReport {
    bool usable = false;
    std::string way;                   ///< "nvidia-fs" or "PCI P2PDMA"; "" if it is not usable
    std::vector<std::string> reasons;  ///< missing conditions with the fix; empty if usable
};

/// A GPU as the CUDA driver shows it to this process.
struct Gpu {
    std::int32_t number = 0;  ///< the CUDA number in this process: 0 for "cuda:0"
    std::string name;
    std::uint64_t memory_bytes = 0;
    int compute_major = 0;  ///< compute capability
    int compute_minor = 0;
    std::string pci;      ///< its address on the PCI bus, "0000:3b:00.0"
    int numa_node = -1;   ///< the nearest memory node; -1: not known
    CuFileReport cufile;  ///< for this machine and GPU; for a disk, see cufile_conditions()
};

/// The GPUs of this process, or why it has no GPU.
struct GpuReport {
    bool available = false;  ///< bytes can be moved to the memory of at least one GPU
    std::string reason;      ///< if not available: the reason, and the fix
    int driver_version = 0;  ///< CUDA version of the driver: 12080 is 12.8; 0 without a driver
    std::string library;     ///< the file of the driver
    std::vector<Gpu> gpus;
    std::vector<std::string> missing_features;  ///< features that the driver lacks, with the effect
};

/// Opens the driver if it is not open yet. A machine without a GPU is reported with the reason.
/// Never throws (if there is no memory for the result, `reason` is short); thread-safe.
[[nodiscard]] PENSTOCK_API GpuReport gpus() noexcept;

/// How many GPUs gpus() would report, without asking about each of them: cheap once the driver is
/// open. Thread-safe.
[[nodiscard]] PENSTOCK_API std::int32_t gpu_count() noexcept;

/// Bytes of a GPU's memory that nobody uses now, this process included. Other processes may take
/// them meanwhile. The first call of a process for a GPU takes that GPU's primary context, which
/// costs some hundred MiB of its memory. Throws Error: kInvalidArgument if there is no such GPU;
/// kUnsupported without a driver; kSystem with the message of the driver. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t free_gpu_memory(std::int32_t device);

/// Whether transfers between files at `path` (an existing file or folder) and this GPU need no copy
/// in host memory: checks the machine, the GPU, the disk and the file system. `gpu` is one of
/// gpus(). Opens neither libcufile nor a disk. Throws Error: kSystem if `path` cannot be inspected.
/// Thread-safe.
[[nodiscard]] PENSTOCK_API CuFileReport cufile_conditions(const Gpu& gpu, const std::string& path);

/// The memory at `pointer` according to the driver: of a GPU (also managed memory), or of the host
/// if it was registered with CUDA. Throws Error: kInvalidArgument if the driver does not know the
/// address (ordinary host memory, or memory that was freed) or the bytes reach past its allocation;
/// kUnsupported, with the reason, if there is no driver. Thread-safe.
[[nodiscard]] PENSTOCK_API Memory device_memory(void* pointer, std::uint64_t bytes);

/// Pins host memory during its lifetime: the GPU then copies to and from it alone, at full speed.
/// The memory must outlive this object. Movable.
class PENSTOCK_API PinnedMemory {
public:
    PinnedMemory() = default;
    /// `device`: a GPU that is in use; the memory is pinned for the other GPUs of the process too.
    /// Throws Error: errors of the driver, with the fix for limits; kUnsupported without a driver.
    PinnedMemory(std::span<std::byte> memory, std::int32_t device);
    PinnedMemory(PinnedMemory&& other) noexcept
        : memory_(std::exchange(other.memory_, {})), device_(other.device_) {}
    PinnedMemory& operator=(PinnedMemory&& other) noexcept;
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;
    ~PinnedMemory();
    /// Bytes that are pinned.
    [[nodiscard]] std::uint64_t size() const noexcept { return memory_.size(); }

private:
    std::span<std::byte> memory_;
    std::int32_t device_ = 0;
};

/// A stream of its own on one GPU, in the primary context (as torch's streams): it copies from
/// pinned memory, after what other streams hold and before what comes on them next. No call waits
/// for the GPU, except wait_until_idle(). Work that is on it runs to its end also when the object
/// ends. Movable; calls of one that was moved from, or made without a GPU, throw kInvalidArgument.
/// One thread at a time.
///
///     penstock::GpuStream ours(0);
///     ours.wait_for(theirs);                           // what `theirs` holds now comes first
///     ours.copy_in(on_gpu.data(), pinned.data(), pinned.size());
///     ours.hold_up(theirs);                            // what comes on `theirs` sees the copy
class PENSTOCK_API GpuStream {
public:
    GpuStream() noexcept;  ///< of no GPU
    /// Throws Error: kInvalidArgument if there is no such GPU; kUnsupported without a driver;
    /// kSystem or kOutOfMemory with the message of the driver.
    explicit GpuStream(std::int32_t device);
    GpuStream(GpuStream&& other) noexcept;
    GpuStream& operator=(GpuStream&& other) noexcept;
    GpuStream(const GpuStream&) = delete;
    GpuStream& operator=(const GpuStream&) = delete;
    ~GpuStream();

    /// For TransferOptions::streams: a transfer that begins after what this stream holds.
    [[nodiscard]] StreamHandle handle() const;
    /// Puts a copy on the stream: from pinned memory of the host to memory of the GPU. Both must
    /// last until it is done. Throws Error with the message of the driver.
    void copy_in(std::byte* to, const std::byte* from, std::uint64_t bytes);
    /// Work that comes on this stream from now on waits for what `stream` holds now. Throws Error
    /// with the message of the driver.
    void wait_for(const StreamHandle& stream);
    /// Work that comes on `stream` from now on waits for what this stream holds now. Throws Error
    /// with the message of the driver.
    void hold_up(const StreamHandle& stream);
    /// Waits until all that it holds is done. False if that takes longer than `limit`, if the GPU
    /// does not answer, and in a child of fork().
    [[nodiscard]] bool wait_until_idle(std::chrono::nanoseconds limit) noexcept;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// One copy of copy_memory(): the same number of bytes on both sides; one side may be a GPU.
struct MemoryCopy {
    Memory to;
    ConstMemory from;
};

/// Copies between the host and GPUs, all concurrently, after the work that `streams` hold at the
/// call (empty: the legacy default stream of each GPU in the copies). The copies are complete when
/// it returns, and none is running when it throws. Throws Error: kInvalidArgument for memory of
/// another kind than claimed, or for sides of different lengths; kUnsupported for copies from GPU
/// to GPU; kSystem with the message of the driver. Thread-safe.
PENSTOCK_API void copy_memory(std::span<const MemoryCopy> copies,
                              std::span<const StreamHandle> streams = {});

/// Marks the work that streams hold now, so that any thread can wait for it later. Copies refer to
/// the same mark.
class PENSTOCK_API StreamMark {
public:
    StreamMark() = default;  ///< nothing to wait for
    /// `devices`: the GPUs whose default streams are used if `streams` is empty, or has a default
    /// stream without its device. Throws Error: kInvalidArgument for an invalid stream.
    StreamMark(std::span<const StreamHandle> streams, std::span<const std::int32_t> devices);
    /// Blocks until that work is done. Throws Error with the message of the driver.
    void wait() const;

private:
    std::shared_ptr<const void> order_;
};

}  // namespace penstock
