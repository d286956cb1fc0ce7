// SPDX-License-Identifier: Apache-2.0
// Memory: pools and what fills them, regions that hold tensors, the page cache, and the share of
// the machine that this process may use.
#pragma once

#include <penstock/error.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace penstock {

// Memory for I/O: aligned to pages (2 MiB with huge pages), touched once and kept.

struct MemoryOptions {
    bool lock = false;  ///< mlock; if the limit forbids it, not locked and `shortfall()` says why
    bool huge_pages = true;  ///< transparent huge pages from 2 MiB up, if the system provides them
    std::uint64_t kept_bytes_max = std::uint64_t{1} << 30;  ///< limit on the bytes that a pool
                                                            ///< keeps
    /// Faults pages in before a block is handed out. False: the first writes fault them in, which
    /// several threads can do concurrently.
    bool touch = true;
    bool keep_on_fork = true;  ///< false: a child of fork() does not have the memory at all
};

/// A block of memory on loan from a pool; returned by its last owner. Movable. Contents undefined.
class PENSTOCK_API Buffer {
public:
    Buffer() = default;
    /// A buffer that was moved from is empty.
    Buffer(Buffer&& other) noexcept
        : owner_(std::move(other.owner_)),
          data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        if (this != &other) {
            owner_ = std::move(other.owner_);
            data_ = std::exchange(other.data_, nullptr);
            bytes_ = std::exchange(other.bytes_, 0);
        }
        return *this;
    }
    Buffer(const Buffer&) = default;
    Buffer& operator=(const Buffer&) = default;
    ~Buffer() = default;
    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    /// Bytes, as requested.
    [[nodiscard]] std::uint64_t size() const noexcept { return bytes_; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }
    [[nodiscard]] bool locked() const;
    /// Empty, or requests that failed, why, and how to fix it.
    [[nodiscard]] std::string shortfall() const;

private:
    friend class MemoryPool;
    std::shared_ptr<void> owner_;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

/// Hands out buffers and keeps returned ones. Thread-safe. Buffers may outlive it. It is empty in
/// the child of a fork. Calls of a moved-from pool throw kInvalidArgument.
class PENSTOCK_API MemoryPool {
public:
    explicit MemoryPool(const MemoryOptions& options = {});
    /// Throws Error (kOutOfMemory), naming the size.
    [[nodiscard]] Buffer take(std::uint64_t bytes);
    /// Bytes of the kept buffers.
    [[nodiscard]] std::uint64_t kept_bytes() const;
    /// Returns the kept buffers to the system.
    void trim();

private:
    struct Impl;
    std::shared_ptr<Impl> impl_;
};

// Memory that holds tensors.

/// One piece of memory: of the host, of the host and pinned for GPUs, or of a GPU. It is given back
/// when this ends. A pageable region is addresses first: a page is taken when it is first written
/// to, and drop() gives pages back while the addresses stay. Movable; one that was moved from is
/// empty. Any thread may use the memory and call the const functions and drop().
///
///     auto images = penstock::Region::host(std::uint64_t{64} << 30);   // takes no memory yet
///     engine.read(file, images.memory(0, file.size()).span(), 0);
///     images.drop(0, images.size());                                   // and gives it back
class PENSTOCK_API Region {
public:
    Region() = default;  ///< empty
    /// Pageable memory of the host: zeros, aligned to a page; with `huge_pages`, from 2 MiB up, to
    /// 2 MiB, in huge pages where the system has them. `keep_on_fork` false: a child of fork() does
    /// not have the memory. Throws Error: kOutOfMemory, with the size and the fix.
    [[nodiscard]] static Region host(std::uint64_t bytes, bool huge_pages = false,
                                     bool keep_on_fork = true);
    /// Memory of the host that is pinned for all GPUs of the process: copies of it run without the
    /// processor, and kernels reach it. A child of fork() does not have it. `device`: a GPU that is
    /// in use. Throws Error: kOutOfMemory, or the driver's error with the fix for limits;
    /// kInvalidArgument if there is no such GPU; kUnsupported without a driver.
    [[nodiscard]] static Region pinned(std::uint64_t bytes, std::int32_t device);
    /// Memory of a GPU, aligned to 256 bytes; contents undefined. Its end waits for all work of the
    /// GPU. Throws Error as pinned() does.
    [[nodiscard]] static Region gpu(std::uint64_t bytes, std::int32_t device);

    Region(Region&& other) noexcept { *this = std::move(other); }
    Region& operator=(Region&& other) noexcept {
        if (this != &other) {
            owner_ = std::move(other.owner_);
            data_ = std::exchange(other.data_, nullptr);
            bytes_ = std::exchange(other.bytes_, 0);
            kind_ = std::exchange(other.kind_, MemoryKind::kHost);
            device_ = std::exchange(other.device_, -1);
            gpu_address_ = std::exchange(other.gpu_address_, 0);
        }
        return *this;
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region() = default;

    /// The first byte. Memory of a GPU has an address that the host cannot read.
    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    /// Bytes, as requested.
    [[nodiscard]] std::uint64_t size() const noexcept { return bytes_; }
    /// kDevice for memory of a GPU; pinned memory is of the host.
    [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }
    /// The GPU of gpu() and pinned(); -1 for pageable memory.
    [[nodiscard]] std::int32_t device() const noexcept { return device_; }
    /// The address for kernels and copies of GPUs; 0 for pageable memory.
    [[nodiscard]] std::uint64_t gpu_address() const noexcept { return gpu_address_; }
    /// A part, for transfers and copies. Throws Error: kInvalidArgument if it reaches past the end.
    [[nodiscard]] Memory memory(std::uint64_t offset, std::uint64_t bytes) const;
    /// Gives the whole pages of a part back to the system; they are zeros afterwards. Does nothing
    /// for pinned memory, memory of a GPU, and bytes past the end.
    void drop(std::uint64_t offset, std::uint64_t bytes) noexcept;
    /// Gives the memory up: it stays until the process ends, and this is empty. For memory that a
    /// GPU may still use and does not say that it is done.
    void leave() noexcept {
        if (void* const kept = owner_.release()) {
            owner_.get_deleter().end(kept, true);
        }
        *this = Region();
    }

private:
    struct End {
        void (*end)(void* owner, bool leaves);
        void operator()(void* owner) const noexcept { end(owner, false); }
    };
    template <typename Owner>
    void own(Owner owner);

    std::unique_ptr<void, End> owner_;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
    std::uint64_t gpu_address_ = 0;
    MemoryKind kind_ = MemoryKind::kHost;
    std::int32_t device_ = -1;
};

// Explicit control of the page cache of this machine. CachePolicy says how reads use it.

/// Asks the kernel to read `bytes` bytes of a file from `offset` on (nothing: to its end) into the
/// page cache. Returns when all have been requested: the last ones may still be being read, and a
/// kernel that is short of memory may omit some. Any thread. Throws Error if the file cannot be
/// opened.
PENSTOCK_API void prefetch(const std::string& path, std::uint64_t offset = 0,
                           std::optional<std::uint64_t> bytes = {});

/// Writes the dirty pages of a file to its device, then drops the pages of the range that no
/// process has mapped or locked. Any thread; blocks. Throws Error if the file cannot be read or
/// synced.
PENSTOCK_API void evict(const std::string& path, std::uint64_t offset = 0,
                        std::optional<std::uint64_t> bytes = {});

// The share of the machine that this process may use. Memory budgets and numbers of threads depend
// on it: in a container or a cluster job it is less than the whole machine.

/// These functions read the limits of the control groups of this process (its own and those above
/// it, of version 1 and 2) again at each call. A missing file of the kernel means no limit. `root`
/// replaces "/" in the names of these files (/proc/self/cgroup, /proc/self/mountinfo, /proc/meminfo
/// and the files that they name), for tests. Thread-safe; they throw only std::bad_alloc.

/// Bytes of memory that this process may use: the machine's, or the lowest limit of its groups.
[[nodiscard]] PENSTOCK_API std::uint64_t usable_memory_bytes(const std::string& root = {});

/// Bytes of them that can be used now without swapping or being killed.
[[nodiscard]] PENSTOCK_API std::uint64_t available_memory_bytes(const std::string& root = {});

/// Total time that threads of this process's group have waited for memory: the kernel's pressure
/// stall information. If no group has it, that of the machine. Nothing if the kernel has none.
[[nodiscard]] PENSTOCK_API std::optional<std::chrono::microseconds> memory_stall(
    const std::string& root = {});

/// The number of processors that this process may use, 1 or more: those of its affinity, or the
/// equivalent of its groups' share of CPU time, rounded up.
[[nodiscard]] PENSTOCK_API unsigned usable_processors(const std::string& root = {});

}  // namespace penstock
