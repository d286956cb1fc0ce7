// SPDX-License-Identifier: Apache-2.0
// GPUs: which there are, whose memory an address is, and the streams that a transfer begins after.
// One build serves machines with and without a GPU: the CUDA driver (libcuda.so.1) is opened at the
// first call that needs it, never by work on host memory.
#pragma once

#include <penstock/error.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

/// Whether cuFile (NVIDIA's GPUDirect Storage) can carry bytes straight between storage and a GPU,
/// as far as this is known before it is opened. Its compatibility mode is never used.
struct CuFileReport {
    bool usable = false;
    std::string way;                   ///< "nvidia-fs" or "PCI P2PDMA"; "" where it is not usable
    std::vector<std::string> reasons;  ///< what is missing, and what to do; empty where usable
};

/// A GPU as the CUDA driver shows it to this process.
struct Gpu {
    std::int32_t number = 0;  ///< CUDA's own, of this process: that of "cuda:0"
    std::string name;
    std::uint64_t memory_bytes = 0;
    int compute_major = 0;  ///< compute capability
    int compute_minor = 0;
    std::string pci;      ///< its address on the PCI bus, "0000:3b:00.0"
    int numa_node = -1;   ///< the memory node next to it; -1: not known
    CuFileReport cufile;  ///< of this machine and GPU; with a disk, see cufile_conditions()
};

/// The GPUs of this process, or why it has no GPU.
struct GpuReport {
    bool available = false;  ///< bytes can be moved to the memory of at least one GPU
    std::string reason;      ///< where not: why, and what to do
    int driver_version = 0;  ///< of CUDA, which the driver speaks: 12080 is 12.8; 0 without one
    std::string library;     ///< the file of the driver
    std::vector<Gpu> gpus;
    std::vector<std::string> missing_features;  ///< what this driver lacks, and what that costs
};

/// A stream of CUDA's: its handle (a cudaStream_t or CUstream as a number), and the GPU it is on.
/// 0 and 1 are the legacy default stream, 2 is the default stream of the calling thread, as in
/// CUDA.
struct StreamHandle {
    std::uintptr_t handle = 0;
    std::int32_t device = -1;  ///< -1: that of the memory; asked for where handle is 0, 1 or 2
    auto operator<=>(const StreamHandle&) const = default;
};

/// Opens the driver if it is not open yet. A machine without a GPU is an answer with its reason.
/// Never throws (without memory for the answer, `reason` is short); thread-safe.
[[nodiscard]] PENSTOCK_API GpuReport gpus() noexcept;

/// Whether files at `path` (a file or folder that is there) and this GPU can do without a copy in
/// host memory: the machine, the GPU, the disk and the file system are looked at. `gpu` is one of
/// gpus(). Opens neither libcufile nor a disk. Throws Error: kSystem where `path` cannot be looked
/// at. Thread-safe.
[[nodiscard]] PENSTOCK_API CuFileReport cufile_conditions(const Gpu& gpu, const std::string& path);

/// The memory at `pointer`, as the driver knows it: of a GPU (managed memory too), or of the host
/// where it was registered with CUDA. Throws Error: kInvalidArgument where the driver does not know
/// the address (ordinary host memory, or memory that was freed) or the bytes reach past its
/// allocation; kUnsupported, with the reason, where there is no driver. Thread-safe.
[[nodiscard]] PENSTOCK_API Memory device_memory(void* pointer, std::uint64_t bytes);

/// Host memory that is pinned while this lives: copies between it and GPUs are made by the GPU
/// alone, at its full speed. The memory outlives this. Movable.
class PENSTOCK_API PinnedMemory {
public:
    PinnedMemory() = default;
    /// `device`: a GPU that is in use; the others of the process know the memory too. Throws Error:
    /// what the driver refuses, with what to do about limits; kUnsupported without a driver.
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

/// One copy of copy_memory(): as many bytes on both sides, one of which may be a GPU's.
struct MemoryCopy {
    Memory to;
    ConstMemory from;
};

/// Copies between the host and GPUs, all under way at once, each after what `streams` hold at the
/// call (empty: the legacy default stream of each GPU that is met). They are made when it returns,
/// and none runs any more when it throws. Throws Error: kInvalidArgument for memory that is not
/// what it claims to be, or for sides of different lengths; kUnsupported for copies from GPU to
/// GPU; kSystem with the driver's words. Thread-safe.
PENSTOCK_API void copy_memory(std::span<const MemoryCopy> copies,
                              std::span<const StreamHandle> streams = {});

/// The work that streams hold now, to be waited for later on any thread. A copy is the same mark.
class PENSTOCK_API StreamMark {
public:
    StreamMark() = default;  ///< nothing to wait for
    /// `devices`: the GPUs whose default streams are meant where `streams` is empty, or names a
    /// default stream without its device. Throws Error: kInvalidArgument for what is no stream.
    StreamMark(std::span<const StreamHandle> streams, std::span<const std::int32_t> devices);
    /// Blocks until that work is done. Throws Error with the driver's words.
    void wait() const;

private:
    std::shared_ptr<const void> order_;
};

}  // namespace penstock
