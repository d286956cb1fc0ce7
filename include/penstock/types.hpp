// SPDX-License-Identifier: Apache-2.0
// The small types that the whole API uses.
#pragma once

#include <penstock/error.hpp>

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

/// The access that a file is opened with.
enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };

/// The use of the page cache by a file. `name_of()` has the words.
enum class CachePolicy : std::uint8_t {
    kAuto,      ///< reads take cached and dirty bytes from the page cache, small writes go through
                ///< it, the rest is as kDirect
    kCached,    ///< all reads and writes go through the page cache
    kDirect,    ///< bypasses it if the file system can; File::info() reports whether it does, and
                ///< why
    kRequired,  ///< bypasses it, or fails if the file system cannot
};

/// Classes of transfers on one device. A lower class gets at least 1/16 of the bytes while a higher
/// one has work. Inside a class **flows** take turns, a block each, and so share its bytes equally.
/// A flow is all transfers of one group (TransferOptions::group), of one File, or of one call by
/// path, first in, first out. All transfers of at most a block (EngineOptions::block_bytes) are one
/// flow, which always has the next turn: a small read waits only for requests at the device, not
/// for a queue.
enum class Priority : std::uint8_t { kUrgent = 0, kNormal = 1, kBackground = 2 };
inline constexpr std::size_t kPriorityCount = 3;

/// The mechanism that carries requests to the kernel.
enum class BackendKind : std::uint8_t { kAuto, kUring, kAio, kPosix };

/// The path of bytes between files and memory of GPUs: see EngineOptions::gpu_path.
enum class GpuPath : std::uint8_t { kAuto, kBounce, kCuFile };

/// The state of a transfer.
enum class TransferStatus : std::uint8_t { kRunning, kDone, kFailed, kCancelled };

/// The kind of a name in a folder.
enum class FileKind : std::uint8_t { kFile, kFolder, kSymbolicLink, kOther };

/// The options for opening a file.
struct FileOptions {
    Access access = Access::kRead;
    bool create = false;     ///< make it (0666 less umask) if it does not exist
    bool exclusive = false;  ///< with create: an error (EEXIST) if it exists
    bool truncate = false;   ///< cut it to zero bytes; nothing else ever truncates
    bool follow = true;      ///< false: an error (ELOOP) if the path ends in a symbolic link
    CachePolicy cache = CachePolicy::kAuto;
    /// Only File::append() writes, at the current end of the file, through the page cache. Needs
    /// Access::kWrite.
    bool append = false;
    /// With append: up to so many bytes (at most kAppendBufferMax) are gathered in memory until
    /// File::flush(), sync() or close(). They are lost if the process dies. 0: each record is
    /// written at once.
    std::uint64_t buffer_bytes = 0;
};
inline constexpr std::uint64_t kAppendBufferMax = std::uint64_t{1} << 30;

/// The device that a file lies on.
struct DeviceId {
    std::uint32_t major = 0;
    std::uint32_t minor = 0;
    auto operator<=>(const DeviceId&) const = default;
};

/// The path that was the faster one between files on a disk and the memory of a GPU, as `penstock
/// tune --device` measured it.
struct TunedGpuPath {
    DeviceId disk;                    ///< of the file system, as FileInfo::device
    std::string gpu;                  ///< its address on the PCI bus, as Gpu::pci
    GpuPath path = GpuPath::kBounce;  ///< kBounce or kCuFile
    bool operator==(const TunedGpuPath&) const = default;
};

/// The status of a name; for a symbolic link, of the link itself, not its target.
struct FileStatus {
    FileKind kind = FileKind::kOther;
    std::uint64_t bytes = 0;
    std::uint64_t links = 1;       ///< names that the file has
    DeviceId device;               ///< the device of the file system
    std::uint64_t inode = 0;       ///< its number in the file system
    std::uint32_t mode = 0;        ///< permission bits (07777)
    std::int64_t modified_ns = 0;  ///< when its content changed last; since 1970
};

/// Bytes of a file system.
struct Space {
    std::uint64_t total_bytes = 0;
    std::uint64_t free_bytes = 0;  ///< available to this user
};

/// The owner of memory: the host or a device.
enum class MemoryKind : std::uint8_t { kHost, kDevice };

/// Memory of the caller. A span of bytes converts to it. Transfers of an Engine move memory of the
/// host and of GPUs (device_memory() makes one from a pointer). Calls that take only host memory
/// throw kUnsupported for other memory.
template <typename Byte>
struct BasicMemory {
    Byte* data = nullptr;
    std::uint64_t bytes = 0;
    MemoryKind kind = MemoryKind::kHost;
    std::int32_t device = 0;  ///< of kDevice: its number

    constexpr BasicMemory() = default;
    constexpr BasicMemory(Byte* begin, std::uint64_t size_bytes,
                          MemoryKind whose = MemoryKind::kHost, std::int32_t number = 0) noexcept
        : data(begin), bytes(size_bytes), kind(whose), device(number) {}
    template <std::convertible_to<std::span<Byte>> Bytes>
    constexpr BasicMemory(Bytes&& host) noexcept
        : BasicMemory(std::span<Byte>(host).data(), std::span<Byte>(host).size()) {}
    /// A Memory is a ConstMemory too.
    template <typename Other>
    requires(std::same_as<const Other, Byte>) constexpr BasicMemory(
        const BasicMemory<Other>& other) noexcept
        : BasicMemory(other.data, other.bytes, other.kind, other.device) {}

    /// The bytes of host memory.
    [[nodiscard]] constexpr std::span<Byte> span() const noexcept { return {data, bytes}; }
};

using Memory = BasicMemory<std::byte>;
using ConstMemory = BasicMemory<const std::byte>;  ///< is only read

/// Memory for an extent of a write, which only reads it.
[[nodiscard]] constexpr Memory to_write(ConstMemory memory) noexcept {
    return {const_cast<std::byte*>(memory.data), memory.bytes, memory.kind, memory.device};
}

/// One piece of a transfer: the bytes of `memory`, at `offset` of file number `file` of the
/// transfer's files. Any offset, length (also 0) and address.
struct Extent {
    std::uint64_t offset = 0;
    Memory memory;
    std::uint32_t file = 0;
};

/// Rows of one length in a file: row `i` lies at base + i * stride_bytes.
struct RowTable {
    std::uint64_t base = 0;  ///< offset of row 0, bytes
    std::uint64_t row_bytes = 0;
    std::uint64_t stride_bytes = 0;   ///< from row to row; 0: row_bytes
    std::uint64_t rows = UINT64_MAX;  ///< number of rows; by default as many as the file holds
    std::uint32_t file = 0;           ///< of the transfer's files
};

/// Rows of one or several tables, to one piece of memory (or, for a write, from it). A repeated row
/// is read once if it is no longer than a block. At most 2^32 - 1 rows. All spans except `memory`
/// are used only during the call.
struct Rows {
    std::vector<RowTable> tables = {};
    /// Row numbers in table `table_of[i]`. Without `table_of`, rows are numbered through all
    /// tables; only the last table may then have the default for `rows`.
    std::span<const std::uint64_t> ids = {};
    std::span<const std::uint32_t> table_of = {};
    /// Row `ids[i]` goes to memory + destinations[i] * memory_stride_bytes; empty: i.
    std::span<const std::uint64_t> destinations = {};
    Memory memory = {};
    std::uint64_t memory_stride_bytes = 0;  ///< 0: the longest row
};

/// A CUDA stream: its handle (a cudaStream_t or CUstream as a number), and the GPU it is on. 0 and
/// 1 are the legacy default stream, 2 is the default stream of the calling thread, as in CUDA.
struct StreamHandle {
    std::uintptr_t handle = 0;
    std::int32_t device = -1;  ///< -1: that of the memory; only used if handle is 0, 1 or 2
    auto operator<=>(const StreamHandle&) const = default;
};

// The options of one transfer.

namespace engine {
class DepthLimit;
}  // namespace engine

/// A limit on requests at one device that several transfers share, below the engine's
/// `queue_depth`: pass copies of it in the options of each. A device with several channels divides
/// it equally, with at least one request for each. Thread-safe; may outlive engines.
class PENSTOCK_API DepthLimit {
public:
    DepthLimit() = default;  ///< no limit
    /// `requests`: 1 or more, else kInvalidArgument.
    explicit DepthLimit(std::uint32_t requests);
    /// 0: no limit.
    [[nodiscard]] std::uint32_t requests() const noexcept;

    /// For the engine.
    explicit DepthLimit(std::shared_ptr<engine::DepthLimit> limit) : limit_(std::move(limit)) {}
    [[nodiscard]] const std::shared_ptr<engine::DepthLimit>& handle() const noexcept {
        return limit_;
    }

private:
    std::shared_ptr<engine::DepthLimit> limit_;
};

/// Options of one transfer.
struct TransferOptions {
    Priority priority = Priority::kNormal;
    /// Reads: the end of the file is not an error; `extent_bytes()` has the bytes that were read.
    bool allow_short = false;
    /// Writes: durable (data, size, name) when done.
    bool sync = false;
    /// Writes: extents of the list may overlap; which of them is written last is undefined. Without
    /// it such a list is an error (kInvalidArgument).
    bool allow_overlap = false;
    /// Limit on the bytes of a request, rounded up to the blocks of the device. 0, or more than the
    /// engine's limit, means the engine's. Not used for transfers on the caller's own thread
    /// (`inline_bytes_max`).
    std::uint32_t block_bytes = 0;
    DepthLimit depth_limit = {};
    /// For paths: as in FileOptions. For an open File: kAuto means the policy it was opened with.
    /// kCached reads all bytes through the page cache, and kDirect none; with both, small blocking
    /// writes do not go through it. kRequired fails with kUnsupported if the File is not direct.
    CachePolicy cache = CachePolicy::kAuto;
    /// Transfers with the same address are one flow (see Priority), and so run in their order. The
    /// address is only compared. Without one, each File is a flow.
    const void* group = nullptr;
    /// For memory of a GPU: the transfer begins after the work that these streams hold at the call.
    /// Empty: the legacy default stream of each GPU in the transfer. Used only during the call.
    std::vector<StreamHandle> streams = {};
};

// Progress reports of a long call; the caller may stop it.

/// Called about every 100 ms, on the caller's own thread, with the bytes that are done and the
/// bytes of the whole call. False stops the call: it throws kCancelled, and removes its unfinished
/// files.
using Progress = std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

}  // namespace penstock
