// SPDX-License-Identifier: Apache-2.0
// Memory for the slots of devices, which is locked and so is scarce: the channels of an engine
// share at most 40 MiB a device of it, in chunks of 2 MiB. A channel takes a chunk when it has no
// slot for a request, and keeps it until others wait for one: then it gives back those that are
// idle, and as many more as it has above its share, once they are.
#pragma once

#include "base/align.hpp"
#include "base/result.hpp"
#include "engine/extents.hpp"
#include "engine/mover.hpp"
#include "engine/request.hpp"
#include "memory/block.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::engine {

/// Memory that was cut into slots of one size.
struct SlotChunk {
    memory::Block block;
    std::vector<Slot> slots;
    std::uint32_t out = 0;  ///< of them, in use
    bool leaves = false;    ///< none of it is taken any more: others wait for it
};

class SlotPool {
public:
    static constexpr std::uint32_t kChunkBytes = 2 * base::kMiB;
    static constexpr std::uint32_t kChunksMax = 20;  ///< a device

    /// Those who take chunks of one device: the slots of a channel.
    struct Holder {
        MemoryPlace place;
        std::function<void()> poke;  ///< any thread: look for a chunk again, or give some back
        bool waits = false;
    };

    /// The pool knows it until remove().
    void add(Holder& holder);
    void remove(Holder& holder);

    /// nullptr: all are out. Then all holders are poked, and this one again when some came back.
    [[nodiscard]] base::Result<SlotChunk*> take(Holder& holder, Mover& mover);
    void give_back(const MemoryPlace& place, SlotChunk& chunk);
    /// Does any holder wait?
    [[nodiscard]] bool wanted() const { return waiting_.load(std::memory_order_relaxed) != 0; }
    /// How many chunks a holder may keep while others wait.
    [[nodiscard]] std::uint32_t share(const MemoryPlace& place);
    /// The memory that was made for all devices.
    [[nodiscard]] std::uint64_t bytes();

    /// A device that has holders, and the memory that was made for it.
    struct Use {
        MemoryPlace place;
        std::uint32_t holders = 0;
        std::uint64_t bytes = 0;
    };
    [[nodiscard]] std::vector<Use> uses();

private:
    struct Device {
        MemoryPlace place;
        std::vector<std::unique_ptr<SlotChunk>> chunks;
        std::vector<SlotChunk*> free;
        std::uint32_t made = 0;  ///< chunks, and those that are being made
        std::uint32_t holders = 0;
    };
    [[nodiscard]] Device& device_of(const MemoryPlace& place);
    void told(Holder& holder);
    void tell_waiters(const MemoryPlace& place);

    std::mutex mutex_;
    std::vector<Holder*> holders_;
    std::vector<std::unique_ptr<Device>> devices_;  ///< few
    std::atomic<std::uint32_t> waiting_{0};
};

}  // namespace penstock::engine
