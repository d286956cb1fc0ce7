// SPDX-License-Identifier: Apache-2.0
#include "tier/cache/key_cache.hpp"

#include "base/assert.hpp"
#include "base/planted.hpp"
#include "tier/cache/key_hash.hpp"

#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <bit>

namespace penstock::tier {

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

KeyCache::KeyCache(std::uint32_t slots, RowPolicy policy,
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

KeyCache::Set KeyCache::set_at(std::uint32_t number) const {
    return {number, number * ways_ + std::min(number, with_more_),
            ways_ + (number < with_more_ ? 1 : 0)};
}

KeyCache::Key KeyCache::key_of(std::uint64_t id) const {
    const std::uint64_t hash = key_hash(id);
    Key key{id, hash, {}, {}};
    if (sets_ != 0) {
        const std::uint64_t first = ((hash >> 32) * sets_) >> 32;
        const std::uint64_t further =
            sets_ == 1 ? 0 : 1 + (((hash & UINT32_MAX) * (sets_ - 1)) >> 32);
        const std::uint64_t other = first + further;  // both are below the number of sets
        key.set = set_at(static_cast<std::uint32_t>(first));
        key.other = set_at(static_cast<std::uint32_t>(other < sets_ ? other : other - sets_));
    }
    return key;
}

// A bit a slot of the set.
std::uint64_t KeyCache::with_tag(Set set, std::uint8_t tag) const {
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

std::uint32_t KeyCache::find_in(Set set, std::uint64_t like, std::uint64_t id) const {
    for (; like != 0; like &= like - 1) {
        const std::uint32_t slot = set.first + static_cast<std::uint32_t>(std::countr_zero(like));
        if (ids_[slot] == id) {
            return slot;
        }
    }
    return kNoSlot;
}

std::uint32_t KeyCache::find_slot(const Probe& probe) const {
    const std::uint32_t slot = find_in(probe.key.set, probe.in_set, probe.key.id);
    return slot != kNoSlot ? slot : find_in(probe.key.other, probe.in_other, probe.key.id);
}

std::uint32_t KeyCache::find_slot(const Key& key) const {
    return find_slot({key, with_tag(key.set, tag_of(key.hash)), in_other_set(key)});
}

std::uint64_t KeyCache::in_other_set(const Key& key) const {
    return sets_ < 2 ? 0 : with_tag(key.other, tag_of(key.hash));
}

// The caches of the processor have what is wanted of all keys before the first is looked at: a key
// after the other would wait for memory several times.
void KeyCache::probe(std::span<const std::uint64_t> ids, std::span<Probe> probes) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Key key = key_of(ids[i]);
        probes[i].key = key;
        for (const Set& set : {key.set, key.other}) {
            __builtin_prefetch(tags_.data() + set.first);
            __builtin_prefetch(tags_.data() + set.first + set.ways);
        }
        counts_.prefetch(key.hash);
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
        one.in_set = with_tag(one.key.set, tag_of(one.key.hash));
        one.in_other = in_other_set(one.key);
        prefetch_first(one.key.set, one.in_set);
        prefetch_first(one.key.other, one.in_other);
    }
}

// A slot of the set that has more free ones.
std::uint32_t KeyCache::free_slot(const Key& key) const {
    const std::uint64_t in_first = with_tag(key.set, kTagFree);
    const std::uint64_t in_other = with_tag(key.other, kTagFree);
    if (in_first == 0 && in_other == 0) {
        return kNoSlot;
    }
    return std::popcount(in_first) >= std::popcount(in_other)
               ? key.set.first + static_cast<std::uint32_t>(std::countr_zero(in_first))
               : key.other.first + static_cast<std::uint32_t>(std::countr_zero(in_other));
}

KeyPlace KeyCache::pin(std::uint32_t slot) {
    if (pins_[slot] == kPinsMax) {
        return {};
    }
    ++pins_[slot];
    const bool there = states_[slot] == SlotState::kThere || base::planted("early_hit");
    return {slot, there ? KeyState::kHit : KeyState::kArriving};
}

void KeyCache::take(std::uint32_t slot, const Key& key) {
    PENSTOCK_ASSERT(pins_[slot] == 0);  // a caller copies from it, or a transfer writes to it
    if (tags_[slot] == kTagFree || !base::planted("stale_slot")) {
        tags_[slot] = tag_of(key.hash);
        ids_[slot] = key.id;
    }
    pins_[slot] = 1;
    states_[slot] = SlotState::kArriving;
}

// The key is no longer found; those who found it arriving let go of the slot one after the other.
void KeyCache::fail(std::uint32_t slot) {
    tags_[slot] = kTagFailed;
    states_[slot] = SlotState::kFailed;
    ++stats_.failed;
}

// True if the batch was hinted.
bool KeyCache::start_batch(std::span<const std::uint64_t> ids, std::uint64_t hint) {
    if (policy_ != RowPolicy::kWindow || ids.empty()) {
        return false;
    }
    const std::uint64_t number = hinted_.is_outstanding(hint) ? hint : hinted_.like(ids);
    if (number == kNoHint) {
        if (++unlike_ >= HintedKeys::kHints) {
            stats_.hints_dropped += hinted_.drop();
        }
        return false;
    }
    unlike_ = 0;
    ++stats_.hints_used;
    stats_.hints_dropped += hinted_.use(number);
    return true;
}

void KeyCache::count_use(const Key& key, std::uint32_t slot) {
    if (slot != kNoSlot && uses_[slot] != UINT8_MAX) {
        ++uses_[slot];
    }
    if (counts_.add(key.hash)) {
        counts_.halve();
        for (std::uint8_t& uses : uses_) {
            uses = static_cast<std::uint8_t>(uses / 2);
        }
    }
}

void KeyCache::admit(const Key& key, KeyPlace& place) {
    std::uint32_t slot = find_slot(key);  // another thread may have taken one since
    if (slot != kNoSlot) {
        place = pin(slot);
        return;
    }
    slot = free_slot(key);
    if (slot == kNoSlot) {
        slot = victim(key);
        stats_.evicted += slot == kNoSlot ? 0U : 1U;
    }
    if (slot == kNoSlot) {
        ++stats_.passed_by;
        return;
    }
    take(slot, key);
    enter(slot, key, false);
    ++stats_.admitted;
    place = {slot, KeyState::kRead};
}

void KeyCache::lookup(std::span<const std::uint64_t> ids, std::span<KeyPlace> places,
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
    // All keys that are there are pinned before the first one is admitted: what this caller needs
    // is not evicted for the sake of its other keys.
    std::array<Probe, kRowsLocked> probes;
    std::size_t absent = 0;
    for_each_part([&](std::size_t begin, std::size_t count) {
        probe(ids.subspan(begin, count), probes);
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t slot = find_slot(probes[i]);
            const KeyPlace place = slot == kNoSlot ? KeyPlace{} : pin(slot);
            places[begin + i] = place;
            absent += place.state == KeyState::kRead ? 1U : 0U;
            stats_.hits += place.state == KeyState::kHit ? 1U : 0U;
            stats_.arriving += place.state == KeyState::kArriving ? 1U : 0U;
            if (slot != kNoSlot) {
                use(slot);
            }
            if (counted) {
                count_use(probes[i].key, slot);
            }
        }
    });
    if (absent == 0) {
        return;
    }
    for_each_part([&](std::size_t begin, std::size_t count) {
        for (KeyPlace& place : places.subspan(begin, count)) {
            if (place.state == KeyState::kRead) {
                admit(key_of(ids[static_cast<std::size_t>(&place - places.data())]), place);
                stats_.hits += place.state == KeyState::kHit ? 1U : 0U;
                stats_.arriving += place.state == KeyState::kArriving ? 1U : 0U;
            }
        }
    });
}

void KeyCache::hold(std::span<const std::uint64_t> ids, std::span<KeyPlace> places) noexcept {
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
            places[begin + i] = there ? pin(slot) : KeyPlace{};
            if (there) {
                ++stats_.hits;
                use(slot);
            }
            if (counted) {
                count_use(probes[i].key, there ? slot : kNoSlot);
            }
        }
    }
}

void KeyCache::preload(std::span<const std::uint64_t> ids, std::span<KeyPlace> places) noexcept {
    PENSTOCK_ASSERT(ids.size() == places.size());
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Key key = key_of(ids[i]);
        const std::uint32_t slot = find_slot(key) == kNoSlot ? free_slot(key) : kNoSlot;
        places[i] = {slot, KeyState::kRead};
        if (slot != kNoSlot) {
            take(slot, key);
            enter(slot, key, true);
            ++stats_.preloaded;
        }
    }
}

void KeyCache::commit(std::span<const KeyPlace> places) noexcept {
    {
        const std::lock_guard lock(mutex_);
        for (const KeyPlace& place : places) {
            if (place.state == KeyState::kRead && place.slot != kNoSlot) {
                PENSTOCK_ASSERT(states_[place.slot] == SlotState::kArriving);
                states_[place.slot] = SlotState::kThere;
            }
        }
    }
    arrived_.notify_all();
}

void KeyCache::release(std::span<const KeyPlace> places) noexcept {
    bool failed = false;
    {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < places.size(); ++i) {
            if (i + kAhead < places.size() && places[i + kAhead].slot != kNoSlot) {
                __builtin_prefetch(pins_.data() + places[i + kAhead].slot, 1);
                __builtin_prefetch(states_.data() + places[i + kAhead].slot);
            }
            const KeyPlace place = places[i];
            if (place.slot == kNoSlot) {
                continue;
            }
            SlotState& state = states_[place.slot];
            PENSTOCK_ASSERT(pins_[place.slot] != 0);
            if (place.state == KeyState::kRead && state == SlotState::kArriving) {
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

Arrival KeyCache::arrival(std::uint32_t slot) const noexcept {
    return wait(slot, std::chrono::nanoseconds(0));
}

Arrival KeyCache::wait(std::uint32_t slot, std::chrono::nanoseconds limit) const noexcept {
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return states_[slot] != SlotState::kArriving; };
    if (limit.count() > 0) {
        arrived_.wait_for(lock, std::min(limit, kWaitMax), is_over);
    }
    return !is_over()                           ? Arrival::kArriving
           : states_[slot] == SlotState::kThere ? Arrival::kThere
                                                : Arrival::kFailed;
}

std::uint64_t KeyCache::hint(std::span<const std::uint64_t> ids) {
    if (policy_ != RowPolicy::kWindow || ids.empty() || slots_ == 0) {
        return kNoHint;
    }
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = hinted_.outstanding() < HintedKeys::kHints
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
                words_[slot] |= HintedKeys::bit_of(number);
            }
            count_use(one.key, slot);
        }
    }
    ++stats_.hints;
    return number;
}

void KeyCache::drop_hints() noexcept {
    const std::lock_guard lock(mutex_);
    stats_.hints_dropped += hinted_.drop();
}

std::optional<std::uint32_t> KeyCache::find(std::uint64_t id) const noexcept {
    const std::lock_guard lock(mutex_);
    const std::uint32_t slot = find_slot(key_of(id));
    return slot == kNoSlot ? std::nullopt : std::optional(slot);
}

KeyCacheStats KeyCache::stats() const noexcept {
    const std::lock_guard lock(mutex_);
    return stats_;
}

std::uint64_t KeyCache::metadata_bytes() const noexcept {
    return tags_.size() + ids_.size() * sizeof(ids_[0]) + pins_.size() * sizeof(pins_[0]) +
           states_.size() + uses_.size() + words_.size() * sizeof(words_[0]) +
           ghosts_.size() * sizeof(ghosts_[0]) + hands_.size() + counts_.bytes();
}

std::uint64_t KeyCache::hint_bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return hinted_.bytes();
}

}  // namespace penstock::tier
