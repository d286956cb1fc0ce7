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
#include <exception>
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

/// Pins host memory during its lifetime: GPUs then copy to and from it alone, at full speed, and
/// kernels reach it. The memory must outlive this object. Movable.
class PENSTOCK_API PinnedMemory {
public:
    PinnedMemory() = default;
    /// `device`: a GPU that is in use; the memory is pinned for the other GPUs of the process too.
    /// `is_new`: the memory was just mapped and nobody has pinned it, so what is registered there
    /// is what others left behind when they unmapped theirs, and is taken back. Throws Error:
    /// errors of the driver, with the fix for limits; kInvalidArgument if the memory is pinned
    /// already, or there is no such GPU; kUnsupported without a driver.
    PinnedMemory(std::span<std::byte> memory, std::int32_t device, bool is_new = false);
    PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
    PinnedMemory& operator=(PinnedMemory&& other) noexcept {
        if (this != &other) {
            owner_ = std::move(other.owner_);
            bytes_ = std::exchange(other.bytes_, 0);
            gpu_address_ = std::exchange(other.gpu_address_, 0);
        }
        return *this;
    }
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;
    ~PinnedMemory() = default;
    /// Bytes that are pinned.
    [[nodiscard]] std::uint64_t size() const noexcept { return bytes_; }
    /// The address of the memory for kernels and copies of GPUs; 0 if nothing is pinned.
    [[nodiscard]] std::uint64_t gpu_address() const noexcept { return gpu_address_; }

private:
    std::shared_ptr<void> owner_;
    std::uint64_t bytes_ = 0;
    std::uint64_t gpu_address_ = 0;
};

/// One copy of copy_memory() or GpuStream::copy(): the same number of bytes on both sides; one side
/// may be a GPU.
struct MemoryCopy {
    Memory to;
    ConstMemory from;
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
    /// Puts copies between pinned memory and the GPU on the stream, in either direction, one after
    /// the other. All memory must last until they are done. Throws Error: kInvalidArgument if the
    /// sides of a copy differ in length or none is of the GPU; else with the message of the driver,
    /// and then the first copies may be on the stream.
    void copy(std::span<const MemoryCopy> copies);
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

/// Copies of rows that one kernel of a GPU makes, for rows too many and too short for a copy each.
/// Addresses are those of the GPU's memory and of pinned memory (gpu_address()), at any address and
/// length. add() the rows, start(), and when they are done reset() for the next ones. Copies that
/// still run when this ends are waited for, at most 10 s. Movable; calls of one that was moved
/// from, or made without a GPU, throw kInvalidArgument. One thread at a time.
///
///     penstock::RowCopies copies(0, penstock::RowCopies::pieces(ids.size(), row_bytes));
///     for (std::size_t i = 0; i < ids.size(); ++i) {
///         copies.add(table.gpu_address() + ids[i] * row_bytes, out.gpu_address() + i * row_bytes,
///                    row_bytes);
///     }
///     copies.start(stream);   // what comes on `stream` next sees the rows
class PENSTOCK_API RowCopies {
public:
    enum class State : std::uint8_t { kRunning, kDone, kFailed };

    /// Pieces that rows of so many bytes are: each row is copied in pieces of a few KiB.
    [[nodiscard]] static std::uint64_t pieces(std::uint64_t rows, std::uint64_t row_bytes) noexcept;

    RowCopies() noexcept;  ///< of no GPU
    /// Room for so many pieces. Allocates pinned memory, and the first of a process for a GPU loads
    /// the kernel. Throws Error: kUnsupported without a driver, and for a GPU before Turing
    /// (compute capability 7.5); kInvalidArgument if there is no such GPU; kOutOfMemory, or kSystem
    /// with the message of the driver.
    RowCopies(std::int32_t device, std::uint64_t pieces);
    RowCopies(RowCopies&& other) noexcept;
    RowCopies& operator=(RowCopies&& other) noexcept;
    RowCopies(const RowCopies&) = delete;
    RowCopies& operator=(const RowCopies&) = delete;
    ~RowCopies();

    /// Pieces that there is room for.
    [[nodiscard]] std::uint64_t room() const noexcept;
    /// Pieces that were added.
    [[nodiscard]] std::uint64_t size() const noexcept;
    /// Adds a row. Throws Error: kInvalidArgument after start(), and without room.
    void add(std::uint64_t from, std::uint64_t to, std::uint64_t bytes);
    /// Launches the kernel on `stream`, after what it holds; once. Rows that are no memory the GPU
    /// can reach are an error of the GPU, which ends all its work. Throws Error: kInvalidArgument
    /// if `stream` is no stream, is of another context than the GPU's primary one, or captures a
    /// graph; kSystem with the message of the driver.
    void start(const StreamHandle& stream);
    /// Never blocks. kFailed: the GPU is in an error, or its context is gone.
    [[nodiscard]] State state() noexcept;
    /// The state after at most `limit`.
    [[nodiscard]] State wait(std::chrono::nanoseconds limit) noexcept;
    /// The Error after kFailed; else null.
    [[nodiscard]] std::exception_ptr error() const noexcept;
    /// Forgets the rows. Throws Error: kInvalidArgument while they are copied.
    void reset();

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
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
