// SPDX-License-Identifier: Apache-2.0
#include "memory/lasting_memory.hpp"

#include "base/of_process.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>

namespace penstock::memory {

namespace {

base::OfProcess<LastingMemory>& table() {
    static auto* const made =
        new base::OfProcess<LastingMemory>([] { return std::make_shared<LastingMemory>(); });
    return *made;  // never destroyed: memory may outlive everything
}

}  // namespace

LastingMemory& LastingMemory::of_process() {
    return *table();
}

bool LastingMemory::add(std::byte* data, std::uint64_t bytes) noexcept {
    try {
        LastingMemory& self = of_process();
        const std::lock_guard lock(self.mutex_);
        self.ranges_[data] = {data, bytes, ++self.numbers_};
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Blocks that were added before a fork are not in the child's table, which may not even be made.
void LastingMemory::remove(std::byte* data) noexcept {
    if (!table().is_made()) {
        return;
    }
    LastingMemory& self = *table();
    const std::lock_guard lock(self.mutex_);
    if (self.ranges_.erase(data) == 0) {
        return;
    }
    self.removals_.fetch_add(1, std::memory_order_release);
    for (Watcher* watcher : self.watchers_) {
        watcher->removed();
    }
}

bool LastingMemory::overlaps(std::span<const std::byte> bytes) noexcept {
    if (bytes.empty() || !table().is_made()) {
        return false;
    }
    const LastingMemory& self = *table();
    const std::lock_guard lock(self.mutex_);
    const auto after = self.ranges_.lower_bound(bytes.data() + bytes.size());
    return after != self.ranges_.begin() &&
           std::prev(after)->second.data + std::prev(after)->second.bytes > bytes.data();
}

std::optional<LastingMemory::Range> LastingMemory::find(const std::byte* at) const {
    const std::lock_guard lock(mutex_);
    const auto after = ranges_.upper_bound(at);
    if (after == ranges_.begin() || !std::prev(after)->second.holds(at, 1)) {
        return std::nullopt;
    }
    return std::prev(after)->second;
}

void LastingMemory::watch(Watcher& watcher) {
    const std::lock_guard lock(mutex_);
    watchers_.push_back(&watcher);
}

void LastingMemory::unwatch(Watcher& watcher) noexcept {
    const std::lock_guard lock(mutex_);
    watchers_.erase(std::remove(watchers_.begin(), watchers_.end(), &watcher), watchers_.end());
}

}  // namespace penstock::memory
