// SPDX-License-Identifier: Apache-2.0
#include "engine/uring/registered_memory.hpp"

#include <algorithm>

namespace penstock::engine {

RegisteredMemory::~RegisteredMemory() {
    if (table_ != nullptr) {
        table_->unwatch(*this);
    }
}

// All room is made here: nothing allocates where requests go.
void RegisteredMemory::open() {
    held_.reserve(Ring::kMemoryNumbers);
    free_numbers_.reserve(Ring::kMemoryNumbers);
    for (std::uint32_t i = Ring::kMemoryNumbers; i-- > 0;) {
        free_numbers_.push_back(static_cast<int>(i));
    }
    memory::LastingMemory& table = memory::LastingMemory::of_process();
    removals_seen_ = table.removals();
    table.watch(*this);
    table_ = &table;
}

// Its pages are the kernel's until this ring lets go of them, so a thread that sleeps is woken.
void RegisteredMemory::removed() noexcept {
    if (bytes() != 0) {
        wake_.wake();
    }
}

int RegisteredMemory::search(const std::byte* at, std::uint64_t bytes) {
    for (std::size_t i = 0; i < held_.size(); ++i) {
        if (held_[i].range.holds(at, bytes)) {
            last_ = i;
            return held_[i].number;
        }
    }
    const bool looked_at = held_.empty() || ++misses_ % kLookedAt == 0;
    if (looked_at && table_ != nullptr && refused() == 0) {
        consider(at, bytes * kLookedAt);
    }
    return kNone;
}

void RegisteredMemory::consider(const std::byte* at, std::uint64_t bytes) {
    const auto range = table_->find(at);
    if (!range || range->bytes > std::min(kBlockBytesMax, kBytesMax - this->bytes()) ||
        free_numbers_.empty()) {
        return;
    }
    auto found = std::find_if(candidates_.begin(), candidates_.end(),
                              [&](const Candidate& each) { return each.number == range->number; });
    if (found == candidates_.end()) {
        found = std::min_element(
            candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.bytes < b.bytes; });
        *found = {range->number, 0};
    }
    found->bytes += bytes;
    if (found->bytes >= range->bytes) {
        *found = {};
        hold(*range);
    }
}

void RegisteredMemory::hold(const memory::LastingMemory::Range& range) {
    if (!has_table_) {
        if (const int error = ring_.make_memory_table(); error != 0) {
            refuse(error);
            return;
        }
        has_table_ = true;
    }
    const int number = free_numbers_.back();
    if (const int error = ring_.register_memory(number, range.data, range.bytes); error != 0) {
        refuse(error);
        return;
    }
    free_numbers_.pop_back();
    held_.push_back({range, number});
    bytes_.store(bytes() + range.bytes, std::memory_order_relaxed);
    // It may have gone since it was found: then the removal was counted, or this thread is woken.
    let_go_of_removed();
}

void RegisteredMemory::let_go() {
    removals_seen_ = table_->removals();
    for (std::size_t i = held_.size(); i-- > 0;) {
        const Held held = held_[i];
        const auto range = table_->find(held.range.data);
        if (range && range->number == held.range.number) {
            continue;
        }
        // Requests that are out keep their pages until they are through.
        if (const int error = ring_.register_memory(held.number, nullptr, 0); error != 0) {
            refuse(error);  // its number is not used again
        } else {
            free_numbers_.push_back(held.number);
        }
        bytes_.store(bytes() - held.range.bytes, std::memory_order_relaxed);
        held_[i] = held_.back();
        held_.pop_back();
    }
}

void RegisteredMemory::refuse(int error) {
    refused_.store(error, std::memory_order_relaxed);
}

}  // namespace penstock::engine
