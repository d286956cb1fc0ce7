// SPDX-License-Identifier: Apache-2.0
// Memory for I/O: aligned to pages (2 MiB with huge pages), touched once and kept.
#pragma once

#include <penstock/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace penstock {

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

}  // namespace penstock
