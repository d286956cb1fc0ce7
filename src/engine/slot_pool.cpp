// SPDX-License-Identifier: Apache-2.0
#include "engine/slot_pool.hpp"

#include "base/assert.hpp"

#include <algorithm>
#include <utility>

namespace penstock::engine {

SlotPool::Device& SlotPool::device_of(const MemoryPlace& place) {
    const auto found = std::find_if(devices_.begin(), devices_.end(),
                                    [&](const auto& device) { return device->place == place; });
    if (found != devices_.end()) {
        return **found;
    }
    auto device = std::make_unique<Device>();
    device->place = place;
    device->chunks.reserve(kChunksMax);
    device->free.reserve(kChunksMax);
    devices_.push_back(std::move(device));
    return *devices_.back();
}

void SlotPool::add(Holder& holder) {
    const std::lock_guard lock(mutex_);
    Device& device = device_of(holder.place);
    holders_.push_back(&holder);
    ++device.holders;
}

void SlotPool::remove(Holder& holder) {
    const std::lock_guard lock(mutex_);
    told(holder);
    holders_.erase(std::remove(holders_.begin(), holders_.end(), &holder), holders_.end());
    --device_of(holder.place).holders;
}

void SlotPool::told(Holder& holder) {
    if (std::exchange(holder.waits, false)) {
        waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
}

// All of them: one that was first may not want it any more.
void SlotPool::tell_waiters(const MemoryPlace& place) {
    for (Holder* holder : holders_) {
        if (holder->waits && holder->place == place) {
            told(*holder);
            holder->poke();
        }
    }
}

// Makes memory without the lock: to register it may take milliseconds.
base::Result<SlotChunk*> SlotPool::take(Holder& holder, Mover& mover) {
    std::unique_lock lock(mutex_);
    Device& device = device_of(holder.place);
    if (!device.free.empty()) {
        SlotChunk* const chunk = device.free.back();
        device.free.pop_back();
        return chunk;
    }
    if (device.made == kChunksMax) {
        if (!std::exchange(holder.waits, true)) {  // once, until it was told
            waiting_.fetch_add(1, std::memory_order_relaxed);
            for (Holder* other : holders_) {
                if (other->place == holder.place) {
                    other->poke();
                }
            }
        }
        return nullptr;
    }
    ++device.made;
    lock.unlock();
    auto made = base::as_result("allocate", [&]() -> base::Result<std::unique_ptr<SlotChunk>> {
        auto chunk = std::make_unique<SlotChunk>();
        PENSTOCK_TRY(block, mover.slot_memory(kChunkBytes));
        chunk->block = std::move(block);
        return chunk;
    });
    lock.lock();
    if (!made) {
        --device.made;
        tell_waiters(holder.place);  // who waits may make it now
        return base::fail(std::move(made.error()));
    }
    device.chunks.push_back(std::move(*made));
    return device.chunks.back().get();
}

void SlotPool::give_back(const MemoryPlace& place, SlotChunk& chunk) {
    PENSTOCK_ASSERT(chunk.out == 0);  // another channel cuts it and moves bytes through it
    const std::lock_guard lock(mutex_);
    device_of(place).free.push_back(&chunk);
    tell_waiters(place);
}

// With more holders than can have one for large and one for small slots, nobody keeps any: they
// take turns.
std::uint32_t SlotPool::share(const MemoryPlace& place) {
    const std::lock_guard lock(mutex_);
    const std::uint32_t holders = device_of(place).holders;
    return holders * 2 > kChunksMax ? 0 : kChunksMax / std::max(holders, 1U);
}

std::vector<SlotPool::Use> SlotPool::uses() {
    std::vector<Use> all;
    const std::lock_guard lock(mutex_);
    for (const auto& device : devices_) {
        all.push_back({device->place, device->holders, std::uint64_t{device->made} * kChunkBytes});
    }
    return all;
}

std::uint64_t SlotPool::bytes() {
    const std::lock_guard lock(mutex_);
    std::uint64_t total = 0;
    for (const auto& device : devices_) {
        total += std::uint64_t{device->made} * kChunkBytes;
    }
    return total;
}

}  // namespace penstock::engine
