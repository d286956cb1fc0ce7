// SPDX-License-Identifier: Apache-2.0
// Bytes of a GPU as the host sees them: a piece at a time, through small blocks of pinned memory.
// Checksums are made with it. Of host memory nothing is copied.
#pragma once

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace penstock::stream {

/// Bytes of a window; a larger piece gets a larger one.
inline constexpr std::uint64_t kHostWindowBytes = std::uint64_t{4} << 20;

/// Thread-safe: as many windows as threads use it at once, kept until it is destroyed.
class HostWindows {
public:
    HostWindows() : pool_({.kept_bytes_max = 0, .touch = false, .keep_on_fork = false}) {}
    HostWindows(const HostWindows&) = delete;
    HostWindows& operator=(const HostWindows&) = delete;

    /// Gives what `use(bytes)` returns, with the bytes on the host for as long as it runs. Throws
    /// Error as copy_memory(), kOutOfMemory.
    template <typename Use>
    auto with(ConstMemory memory, const Use& use) {
        if (memory.kind == MemoryKind::kHost) {
            return use(memory.span());
        }
        const Lease lease(*this);
        return use(lease.fetch(memory));
    }

private:
    struct Window {
        Buffer buffer;
        PinnedMemory pinned;  // destroyed before its memory
    };
    class Lease {
    public:
        explicit Lease(HostWindows& owner);
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;
        ~Lease();
        [[nodiscard]] std::span<const std::byte> fetch(ConstMemory memory) const;

    private:
        HostWindows& owner_;
        std::unique_ptr<Window> window_;
    };

    MemoryPool pool_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Window>> free_;
};

}  // namespace penstock::stream
