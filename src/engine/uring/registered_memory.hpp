// SPDX-License-Identifier: Apache-2.0
// Memory that a ring was given for good (IORING_REGISTER_BUFFERS2, Linux 5.13): a request to it
// names a number, and the kernel neither looks up nor pins its pages, which is a quarter of what a
// random read of 4 KiB costs it.
//
// Registering pins every page (0.1 to 0.3 us each) and counts in the limit on locked memory. So a
// block is registered when as many bytes have gone to or from it as it has, it is not large, and it
// lasts (memory/lasting_memory.hpp). What a kernel or a limit refuses goes on as before: nothing
// else is registered at this ring then, and refused() says why.
#pragma once

#include "base/result.hpp"
#include "engine/uring/ring.hpp"
#include "engine/wake_event.hpp"
#include "memory/lasting_memory.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace penstock::engine {

class RegisteredMemory final : private memory::LastingMemory::Watcher {
public:
    /// Wakes the ring's thread when something goes that it has. Both must outlive it.
    RegisteredMemory(Ring& ring, WakeEvent& wake) : ring_(ring), wake_(wake) {}
    RegisteredMemory(const RegisteredMemory&) = delete;
    RegisteredMemory& operator=(const RegisteredMemory&) = delete;
    ~RegisteredMemory();

    /// Once; throws std::bad_alloc.
    void open();
    /// In the child of a fork.
    void abandon() { table_ = nullptr; }

    static constexpr int kNone = -1;

    // ---- the ring's thread
    /// The number of the registered memory that holds all of it, or kNone.
    [[nodiscard]] int number_of(const void* data, std::uint64_t bytes) {
        const auto* at = static_cast<const std::byte*>(data);
        if (!held_.empty()) {
            let_go_of_removed();
            if (last_ < held_.size() && held_[last_].range.holds(at, bytes)) {
                return held_[last_].number;
            }
        }
        // One request of so many is looked at, for a look takes a lock of the process.
        return held_.empty() && ++misses_ % kLookedAt != 0 ? kNone : search(at, bytes);
    }
    /// Gives up what was removed.
    void let_go_of_removed() {
        if (table_ != nullptr && table_->removals() != removals_seen_) {
            let_go();
        }
    }

    // ---- any thread
    [[nodiscard]] std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    /// The errno of the kernel's refusal, or 0.
    [[nodiscard]] int refused() const { return refused_.load(std::memory_order_relaxed); }

    static constexpr std::uint64_t kBlockBytesMax = std::uint64_t{64} << 20;
    static constexpr std::uint64_t kBytesMax = std::uint64_t{256} << 20;

private:
    static constexpr std::uint32_t kLookedAt = 16;

    struct Held {
        memory::LastingMemory::Range range;
        int number = 0;
    };
    struct Candidate {
        std::uint64_t number = 0;  ///< of the range
        std::uint64_t bytes = 0;   ///< that went to or from it, about
    };

    void removed() noexcept override;
    [[nodiscard]] int search(const std::byte* at, std::uint64_t bytes);
    void consider(const std::byte* at, std::uint64_t bytes);
    void hold(const memory::LastingMemory::Range& range);
    void let_go();
    void refuse(int error);

    Ring& ring_;
    WakeEvent& wake_;
    memory::LastingMemory* table_ = nullptr;
    std::uint64_t removals_seen_ = 0;
    std::vector<Held> held_;
    std::vector<int> free_numbers_;
    std::size_t last_ = 0;  ///< of held_: the one that was in use last
    std::uint32_t misses_ = 0;
    std::array<Candidate, 4> candidates_{};
    bool has_table_ = false;  ///< at the ring
    std::atomic<std::uint64_t> bytes_{0};
    std::atomic<int> refused_{0};
};

}  // namespace penstock::engine
