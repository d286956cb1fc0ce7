// SPDX-License-Identifier: Apache-2.0
#include "features/gather/row_cache.hpp"

#include "base/assert.hpp"
#include "base/planted.hpp"
#include "features/gather/row_hash.hpp"

#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <bit>

namespace penstock::features {

namespace {

constexpr std::uint32_t kWays = 64;
constexpr std::size_t kRowsLocked = 64;
constexpr std::size_t kAhead = 16;  // slots whose state is asked for before they are let go of
constexpr std::uint8_t kTagFree = 0;
constexpr std::uint8_t kTagFailed = 1;
constexpr std::uint16_t kPinsMax = UINT16_MAX;
constexpr std::uint64_t kHintBytesPerSlot = 64;
constexpr std::uint64_t kHintBytes = 16 << 20;
constexpr std::chrono::nanoseconds kWaitMax = std::chrono::hours(24);

constexpr std::uint8_t tag_of(std::uint64_t hash) {
    return static_cast<std::uint8_t>(2 + (hash & 0xff) % 254);
}

}  // namespace

RowCache::RowCache(std::uint32_t slots, RowPolicy policy,
                   std::optional<std::uint64_t> hint_bytes_max)
    : slots_(slots),
      policy_(policy),
      hint_bytes_max_(hint_bytes_max.value_or(slots * kHintBytesPerSlot + kHintBytes)),
      sets_((slots + kWays - 1) / kWays),
      tags_(std::size_t{slots} + kWays, kTagFree),  // a set is looked at as a whole
      ids_(slots),
      pins_(slots),
      states_(slots, SlotState::kFree),
      uses_(policy == RowPolicy::kStatic ? 0 : slots),
      words_(policy == RowPolicy::kWindow || policy == RowPolicy::kS3Fifo ? slots : 0),
      ghosts_(policy == RowPolicy::kS3Fifo ? slots : 0),
      hands_(sets_),
      counts_(policy == RowPolicy::kWindow ? slots : 0) {
    PENSTOCK_ASSERT(slots <= kSlotsMax);
    if (sets_ != 0) {
        ways_ = slots_ / sets_;
        with_more_ = slots_ % sets_;
    }
}

RowCache::Set RowCache::set_at(std::uint32_t number) const {
    return {number, number * ways_ + std::min(number, with_more_),
            ways_ + (number < with_more_ ? 1 : 0)};
}

RowCache::Row RowCache::row_of(std::uint64_t id) const {
    const std::uint64_t hash = row_hash(id);
    Row row{id, hash, {}, {}};
    if (sets_ != 0) {
        const std::uint64_t first = ((hash >> 32) * sets_) >> 32;
        const std::uint64_t further =
            sets_ == 1 ? 0 : 1 + (((hash & UINT32_MAX) * (sets_ - 1)) >> 32);
        const std::uint64_t other = first + further;  // both are below the number of sets
        row.set = set_at(static_cast<std::uint32_t>(first));
        row.other = set_at(static_cast<std::uint32_t>(other < sets_ ? other : other - sets_));
    }
    return row;
}

// A bit a slot of the set.
std::uint64_t RowCache::with_tag(Set set, std::uint8_t tag) const {
    if (set.ways == 0) {
        return 0;
    }
    const __m128i wanted = _mm_set1_epi8(static_cast<char>(tag));
    std::uint64_t found = 0;
    for (std::uint32_t i = 0; i < set.ways; i += 16) {
        const __m128i tags =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(&tags_[set.first + i]));
        const auto equal =
            static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(tags, wanted)));
        found |= std::uint64_t{equal} << i;
    }
    return found & (UINT64_MAX >> (kWays - set.ways));
}

std::uint32_t RowCache::find_in(Set set, std::uint64_t like, std::uint64_t id) const {
    for (; like != 0; like &= like - 1) {
        const std::uint32_t slot = set.first + static_cast<std::uint32_t>(std::countr_zero(like));
        if (ids_[slot] == id) {
            return slot;
        }
    }
    return kNoSlot;
}

std::uint32_t RowCache::find_slot(const Probe& probe) const {
    const std::uint32_t slot = find_in(probe.row.set, probe.in_set, probe.row.id);
    return slot != kNoSlot ? slot : find_in(probe.row.other, probe.in_other, probe.row.id);
}

std::uint32_t RowCache::find_slot(const Row& row) const {
    return find_slot({row, with_tag(row.set, tag_of(row.hash)), in_other_set(row)});
}

std::uint64_t RowCache::in_other_set(const Row& row) const {
    return sets_ < 2 ? 0 : with_tag(row.other, tag_of(row.hash));
}

// The caches of the processor have what is wanted of all rows before the first is looked at: a row
// after the other would wait for memory several times.
void RowCache::probe(std::span<const std::uint64_t> ids, std::span<Probe> probes) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Row row = row_of(ids[i]);
        probes[i].row = row;
        for (const Set& set : {row.set, row.other}) {
            __builtin_prefetch(tags_.data() + set.first);
            __builtin_prefetch(tags_.data() + set.first + set.ways);
        }
        counts_.prefetch(row.hash);
    }
    const auto prefetch_first = [this](Set set, std::uint64_t like) {
        if (like != 0) {
            const std::size_t slot = set.first + static_cast<std::size_t>(std::countr_zero(like));
            __builtin_prefetch(ids_.data() + slot);
            __builtin_prefetch(pins_.data() + slot, 1);
            __builtin_prefetch(states_.data() + slot);
            if (!uses_.empty()) {
                __builtin_prefetch(uses_.data() + slot, 1);
            }
        }
    };
    for (Probe& one : probes.first(ids.size())) {
        one.in_set = with_tag(one.row.set, tag_of(one.row.hash));
        one.in_other = in_other_set(one.row);
        prefetch_first(one.row.set, one.in_set);
        prefetch_first(one.row.other, one.in_other);
    }
}

// A slot of the set that has more free ones.
std::uint32_t RowCache::free_slot(const Row& row) const {
    const std::uint64_t in_first = with_tag(row.set, kTagFree);
    const std::uint64_t in_other = with_tag(row.other, kTagFree);
    if (in_first == 0 && in_other == 0) {
        return kNoSlot;
    }
    return std::popcount(in_first) >= std::popcount(in_other)
               ? row.set.first + static_cast<std::uint32_t>(std::countr_zero(in_first))
               : row.other.first + static_cast<std::uint32_t>(std::countr_zero(in_other));
}

RowPlace RowCache::pin(std::uint32_t slot) {
    if (pins_[slot] == kPinsMax) {
        return {};
    }
    ++pins_[slot];
    const bool there = states_[slot] == SlotState::kThere || base::planted("early_hit");
    return {slot, there ? RowState::kHit : RowState::kArriving};
}

void RowCache::take(std::uint32_t slot, const Row& row) {
    PENSTOCK_ASSERT(pins_[slot] == 0);  // a gather copies from it, or a transfer writes to it
    if (tags_[slot] == kTagFree || !base::planted("stale_slot")) {
        tags_[slot] = tag_of(row.hash);
        ids_[slot] = row.id;
    }
    pins_[slot] = 1;
    states_[slot] = SlotState::kArriving;
}

// The row is no longer found; those who found it arriving let go of the slot one after the other.
void RowCache::fail(std::uint32_t slot) {
    tags_[slot] = kTagFailed;
    states_[slot] = SlotState::kFailed;
    ++stats_.failed;
}

// True if the batch was hinted.
bool RowCache::start_batch(std::span<const std::uint64_t> ids, std::uint64_t hint) {
    if (policy_ != RowPolicy::kWindow || ids.empty()) {
        return false;
    }
    const std::uint64_t number = hinted_.is_outstanding(hint) ? hint : hinted_.like(ids);
    if (number == kNoHint) {
        if (++unlike_ >= HintedRows::kHints) {
            stats_.hints_dropped += hinted_.drop();
        }
        return false;
    }
    unlike_ = 0;
    ++stats_.hints_used;
    stats_.hints_dropped += hinted_.use(number);
    return true;
}

void RowCache::count_use(const Row& row, std::uint32_t slot) {
    if (slot != kNoSlot && uses_[slot] != UINT8_MAX) {
        ++uses_[slot];
    }
    if (counts_.add(row.hash)) {
        counts_.halve();
        for (std::uint8_t& uses : uses_) {
            uses = static_cast<std::uint8_t>(uses / 2);
        }
    }
}

void RowCache::admit(const Row& row, RowPlace& place) {
    std::uint32_t slot = find_slot(row);  // another thread may have taken one since
    if (slot != kNoSlot) {
        place = pin(slot);
        return;
    }
    slot = free_slot(row);
    if (slot == kNoSlot) {
        slot = victim(row);
        stats_.evicted += slot == kNoSlot ? 0U : 1U;
    }
    if (slot == kNoSlot) {
        ++stats_.passed_by;
        return;
    }
    take(slot, row);
    enter(slot, row, false);
    ++stats_.admitted;
    place = {slot, RowState::kRead};
}

void RowCache::lookup(std::span<const std::uint64_t> ids, std::span<RowPlace> places,
                      std::uint64_t hint) noexcept {
    PENSTOCK_ASSERT(ids.size() == places.size());
    std::unique_lock lock(mutex_);
    const bool hinted = start_batch(ids, hint);
    const bool counted = policy_ == RowPolicy::kWindow && !hinted;
    const auto for_each_part = [&](const auto& call) {
        for (std::size_t begin = 0; begin < ids.size(); begin += kRowsLocked) {
            if (begin != 0) {
                lock.unlock();
                lock.lock();
            }
            call(begin, std::min(kRowsLocked, ids.size() - begin));
        }
    };
    // All rows that are there are pinned before the first one is admitted: what this gather needs
    // is not evicted for the sake of its other rows.
    std::array<Probe, kRowsLocked> probes;
    std::size_t absent = 0;
    for_each_part([&](std::size_t begin, std::size_t count) {
        probe(ids.subspan(begin, count), probes);
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t slot = find_slot(probes[i]);
            const RowPlace place = slot == kNoSlot ? RowPlace{} : pin(slot);
            places[begin + i] = place;
            absent += place.state == RowState::kRead ? 1U : 0U;
            stats_.hits += place.state == RowState::kHit ? 1U : 0U;
            stats_.arriving += place.state == RowState::kArriving ? 1U : 0U;
            if (slot != kNoSlot) {
                use(slot);
            }
            if (counted) {
                count_use(probes[i].row, slot);
            }
        }
    });
    if (absent == 0) {
        return;
    }
    for_each_part([&](std::size_t begin, std::size_t count) {
        for (RowPlace& place : places.subspan(begin, count)) {
            if (place.state == RowState::kRead) {
                admit(row_of(ids[static_cast<std::size_t>(&place - places.data())]), place);
                stats_.hits += place.state == RowState::kHit ? 1U : 0U;
                stats_.arriving += place.state == RowState::kArriving ? 1U : 0U;
            }
        }
    });
}

void RowCache::hold(std::span<const std::uint64_t> ids, std::span<RowPlace> places) noexcept {
    PENSTOCK_ASSERT(ids.size() == places.size());
    std::unique_lock lock(mutex_);
    const bool counted = !start_batch(ids, kNoHint) && policy_ == RowPolicy::kWindow;
    std::array<Probe, kRowsLocked> probes;
    for (std::size_t begin = 0; begin < ids.size(); begin += kRowsLocked) {
        if (begin != 0) {
            lock.unlock();
            lock.lock();
        }
        const std::size_t count = std::min(kRowsLocked, ids.size() - begin);
        probe(ids.subspan(begin, count), probes);
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t slot = find_slot(probes[i]);
            const bool there = slot != kNoSlot && states_[slot] == SlotState::kThere;
            places[begin + i] = there ? pin(slot) : RowPlace{};
            if (there) {
                ++stats_.hits;
                use(slot);
            }
            if (counted) {
                count_use(probes[i].row, there ? slot : kNoSlot);
            }
        }
    }
}

void RowCache::preload(std::span<const std::uint64_t> ids, std::span<RowPlace> places) noexcept {
    PENSTOCK_ASSERT(ids.size() == places.size());
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Row row = row_of(ids[i]);
        const std::uint32_t slot = find_slot(row) == kNoSlot ? free_slot(row) : kNoSlot;
        places[i] = {slot, RowState::kRead};
        if (slot != kNoSlot) {
            take(slot, row);
            enter(slot, row, true);
            ++stats_.preloaded;
        }
    }
}

void RowCache::commit(std::span<const RowPlace> places) noexcept {
    {
        const std::lock_guard lock(mutex_);
        for (const RowPlace& place : places) {
            if (place.state == RowState::kRead && place.slot != kNoSlot) {
                PENSTOCK_ASSERT(states_[place.slot] == SlotState::kArriving);
                states_[place.slot] = SlotState::kThere;
            }
        }
    }
    arrived_.notify_all();
}

void RowCache::release(std::span<const RowPlace> places) noexcept {
    bool failed = false;
    {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < places.size(); ++i) {
            if (i + kAhead < places.size() && places[i + kAhead].slot != kNoSlot) {
                __builtin_prefetch(pins_.data() + places[i + kAhead].slot, 1);
                __builtin_prefetch(states_.data() + places[i + kAhead].slot);
            }
            const RowPlace place = places[i];
            if (place.slot == kNoSlot) {
                continue;
            }
            SlotState& state = states_[place.slot];
            PENSTOCK_ASSERT(pins_[place.slot] != 0);
            if (place.state == RowState::kRead && state == SlotState::kArriving) {
                fail(place.slot);
                failed = true;
            }
            if (--pins_[place.slot] == 0 && state == SlotState::kFailed) {
                state = SlotState::kFree;
                tags_[place.slot] = kTagFree;
            }
        }
    }
    if (failed) {
        arrived_.notify_all();
    }
}

Arrival RowCache::arrival(std::uint32_t slot) const noexcept {
    return wait(slot, std::chrono::nanoseconds(0));
}

Arrival RowCache::wait(std::uint32_t slot, std::chrono::nanoseconds limit) const noexcept {
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return states_[slot] != SlotState::kArriving; };
    if (limit.count() > 0) {
        arrived_.wait_for(lock, std::min(limit, kWaitMax), is_over);
    }
    return !is_over()                           ? Arrival::kArriving
           : states_[slot] == SlotState::kThere ? Arrival::kThere
                                                : Arrival::kFailed;
}

std::uint64_t RowCache::hint(std::span<const std::uint64_t> ids) {
    if (policy_ != RowPolicy::kWindow || ids.empty() || slots_ == 0) {
        return kNoHint;
    }
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = hinted_.outstanding() < HintedRows::kHints
                                     ? hinted_.take(ids, words_, hint_bytes_max_)
                                     : kNoHint;
    if (number == kNoHint) {
        ++stats_.hints_refused;
        return kNoHint;
    }
    std::array<Probe, kRowsLocked> probes;
    for (; !ids.empty(); ids = ids.subspan(std::min(kRowsLocked, ids.size()))) {
        const std::size_t count = std::min(kRowsLocked, ids.size());
        probe(ids.first(count), probes);
        for (const Probe& one : std::span(probes).first(count)) {
            const std::uint32_t slot = find_slot(one);
            if (slot != kNoSlot) {
                words_[slot] |= HintedRows::bit_of(number);
            }
            count_use(one.row, slot);
        }
    }
    ++stats_.hints;
    return number;
}

void RowCache::drop_hints() noexcept {
    const std::lock_guard lock(mutex_);
    stats_.hints_dropped += hinted_.drop();
}

std::optional<std::uint32_t> RowCache::find(std::uint64_t id) const noexcept {
    const std::lock_guard lock(mutex_);
    const std::uint32_t slot = find_slot(row_of(id));
    return slot == kNoSlot ? std::nullopt : std::optional(slot);
}

RowCacheStats RowCache::stats() const noexcept {
    const std::lock_guard lock(mutex_);
    return stats_;
}

std::uint64_t RowCache::metadata_bytes() const noexcept {
    return tags_.size() + ids_.size() * sizeof(ids_[0]) + pins_.size() * sizeof(pins_[0]) +
           states_.size() + uses_.size() + words_.size() * sizeof(words_[0]) +
           ghosts_.size() * sizeof(ghosts_[0]) + hands_.size() + counts_.bytes();
}

std::uint64_t RowCache::hint_bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return hinted_.bytes();
}

}  // namespace penstock::features
