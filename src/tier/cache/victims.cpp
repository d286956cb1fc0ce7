// SPDX-License-Identifier: Apache-2.0
// The policies of KeyCache: what a use and an admission change, and which slot of a set gives way.
// A slot that is pinned never does.
#include "tier/cache/key_cache.hpp"
#include "tier/cache/key_hash.hpp"

#include <algorithm>
#include <cstddef>

namespace penstock::tier {

namespace {

constexpr std::uint8_t kS3UsesMax = 3;
// The share of a set that is for keys that came once.
constexpr std::uint32_t kS3Small = 10;
// Preloaded keys are taken to have been used so often.
constexpr std::uint8_t kPreloadedUses = 8;

// 0 means that there is no value.
constexpr std::uint16_t ghost_of(std::uint64_t hash) {
    return static_cast<std::uint16_t>((hash >> 8) | 1);
}

}  // namespace

void KeyCache::use(std::uint32_t slot) {
    if (policy_ == RowPolicy::kClock) {
        uses_[slot] = 1;
    } else if (policy_ == RowPolicy::kS3Fifo && uses_[slot] < kS3UsesMax) {
        ++uses_[slot];
    }
}

void KeyCache::enter(std::uint32_t slot, const Key& key, bool preloaded) {
    switch (policy_) {
        case RowPolicy::kStatic:
            return;
        case RowPolicy::kClock:
            uses_[slot] = preloaded ? 1 : 0;
            return;
        case RowPolicy::kS3Fifo:
            uses_[slot] = 0;
            s3_queue(slot, forget_ghost(key.set, key.hash) || preloaded);
            return;
        case RowPolicy::kWindow:
            words_[slot] = hinted_.mask_of(key.id);
            uses_[slot] =
                std::max(counts_.count(key.hash), preloaded ? kPreloadedUses : std::uint8_t{0});
            return;
    }
}

bool KeyCache::all_pinned(Set set) const {
    const auto begin = pins_.begin() + set.first;
    return std::find(begin, begin + set.ways, 0) == begin + set.ways;
}

std::uint32_t KeyCache::victim(const Key& key) {
    if (all_pinned(key.set) && (policy_ != RowPolicy::kWindow || all_pinned(key.other))) {
        ++stats_.pinned;
        return kNoSlot;
    }
    switch (policy_) {
        case RowPolicy::kStatic:
            return kNoSlot;
        case RowPolicy::kClock:
            return clock_victim(key.set);
        case RowPolicy::kS3Fifo:
            return s3_victim(key.set);
        case RowPolicy::kWindow:
            return window_victim(key);
    }
    return kNoSlot;
}

// One slot at least is not pinned, and after a round it is not used either.
std::uint32_t KeyCache::clock_victim(Set set) {
    std::uint8_t& hand = hands_[set.number];
    for (;;) {
        const std::uint32_t slot = set.first + hand;
        hand = static_cast<std::uint8_t>((hand + 1U) % set.ways);
        if (pins_[slot] != 0) {
            continue;
        }
        if (uses_[slot] == 0) {
            return slot;
        }
        uses_[slot] = 0;
    }
}

void KeyCache::s3_queue(std::uint32_t slot, bool in_main) {
    words_[slot] = stamp_ | (in_main ? 1 : 0);
    stamp_ += 2;
}

// The slot of a queue that came first and is not pinned. Numbers wrap: what counts is how long ago.
std::uint32_t KeyCache::s3_oldest(Set set, bool in_main) const {
    std::uint32_t best = kNoSlot;
    for (std::uint32_t slot = set.first; slot < set.first + set.ways; ++slot) {
        if (pins_[slot] == 0 && (words_[slot] & 1) == (in_main ? 1U : 0U) &&
            (best == kNoSlot || stamp_ - words_[slot] > stamp_ - words_[best])) {
            best = slot;
        }
    }
    return best;
}

std::uint32_t KeyCache::s3_victim(Set set) {
    const auto begin = words_.begin() + set.first;
    auto small = static_cast<std::uint32_t>(
        std::count_if(begin, begin + set.ways, [](std::uint32_t word) { return word % 2 == 0; }));
    const std::uint32_t small_max = std::max(set.ways / kS3Small, 1U);
    // Each round takes a slot, moves one to main, or lowers one of at most 3 uses in main.
    for (;;) {
        std::uint32_t slot = small >= small_max ? s3_oldest(set, false) : kNoSlot;
        if (slot == kNoSlot) {
            slot = s3_oldest(set, true);
        }
        if (slot == kNoSlot) {
            slot = s3_oldest(set, false);
        }
        const bool in_main = words_[slot] % 2 != 0;
        if (!in_main && uses_[slot] > 1) {
            uses_[slot] = 0;
            s3_queue(slot, true);
            --small;
        } else if (in_main && uses_[slot] > 0) {
            --uses_[slot];
            s3_queue(slot, true);
        } else {
            if (!in_main) {
                remember_ghost(set, key_hash(ids_[slot]));
            }
            return slot;
        }
    }
}

std::span<std::uint16_t> KeyCache::ghosts_of(Set set) {
    return std::span(ghosts_).subspan(set.first, set.ways);
}

void KeyCache::remember_ghost(Set set, std::uint64_t hash) {
    std::uint8_t& next = hands_[set.number];
    ghosts_of(set)[next] = ghost_of(hash);
    next = static_cast<std::uint8_t>((next + 1U) % set.ways);
}

bool KeyCache::forget_ghost(Set set, std::uint64_t hash) {
    const std::span<std::uint16_t> ghosts = ghosts_of(set);
    const auto found = std::find(ghosts.begin(), ghosts.end(), ghost_of(hash));
    if (found == ghosts.end()) {
        return false;
    }
    *found = 0;
    return true;
}

// Belady's choice as far as hints reach, then the least used; and none that would be needed before
// the key that comes.
std::uint32_t KeyCache::window_victim(const Key& key) {
    std::uint32_t best = kNoSlot;
    std::uint32_t best_distance = 0;
    const auto look_in = [&](Set set) {
        for (std::uint32_t slot = set.first; slot < set.first + set.ways; ++slot) {
            if (pins_[slot] != 0) {
                continue;
            }
            const std::uint32_t distance = hinted_.distance(words_[slot]);
            if (best == kNoSlot || distance > best_distance ||
                (distance == best_distance && uses_[slot] < uses_[best])) {
                best = slot;
                best_distance = distance;
            }
        }
    };
    look_in(key.set);
    if (sets_ > 1) {
        look_in(key.other);
    }
    const std::uint32_t its = hinted_.distance(hinted_.mask_of(key.id));
    const bool is_sooner =
        its < best_distance || (its == best_distance && counts_.count(key.hash) > uses_[best]);
    return is_sooner ? best : kNoSlot;
}

}  // namespace penstock::tier
