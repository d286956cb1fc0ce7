// SPDX-License-Identifier: Apache-2.0
// Memory: pools and what fills them, the page cache, and the share of the machine that this process
// may use.
#pragma once

#include <penstock/error.hpp>

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
