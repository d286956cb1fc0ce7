// SPDX-License-Identifier: Apache-2.0
// Which memory of this process has the same pages from its mapping to its unmapping: blocks of
// which nobody gives a part back. A kernel may be given such pages for good, and takes them from
// there without asking the page tables again; with other memory it would go on moving bytes to
// pages that nobody sees any more.
//
// The child of a fork has a table of its own: what it inherits is not in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace penstock::memory {

/// Thread-safe.
class LastingMemory {
public:
    struct Range {
        std::byte* data = nullptr;
        std::uint64_t bytes = 0;
        std::uint64_t number = 0;  ///< of no other memory, before or after
        [[nodiscard]] bool holds(const std::byte* at, std::uint64_t count) const {
            return at >= data && count <= bytes && at <= data + (bytes - count);
        }
    };

    /// Hears of what goes, under the table's lock: it may not call the table.
    class Watcher {
    public:
        virtual void removed() noexcept = 0;

    protected:
        ~Watcher() = default;
    };

    LastingMemory() = default;
    LastingMemory(const LastingMemory&) = delete;
    LastingMemory& operator=(const LastingMemory&) = delete;

    [[nodiscard]] static LastingMemory& of_process();

    /// False where there is no memory to note it: then it is like any other.
    [[nodiscard]] static bool add(std::byte* data, std::uint64_t bytes) noexcept;
    /// Before it is unmapped.
    static void remove(std::byte* data) noexcept;

    /// Does any of these bytes lie in memory that lasts?
    [[nodiscard]] static bool overlaps(std::span<const std::byte> bytes) noexcept;
    /// The memory that holds this byte, if it lasts.
    [[nodiscard]] std::optional<Range> find(const std::byte* at) const;
    /// Grows with each removal, before the memory is unmapped.
    [[nodiscard]] std::uint64_t removals() const {
        return removals_.load(std::memory_order_acquire);
    }

    void watch(Watcher& watcher);
    void unwatch(Watcher& watcher) noexcept;

private:
    mutable std::mutex mutex_;
    std::map<const std::byte*, Range> ranges_;
    std::vector<Watcher*> watchers_;
    std::uint64_t numbers_ = 0;
    std::atomic<std::uint64_t> removals_{0};
};

}  // namespace penstock::memory
