// SPDX-License-Identifier: Apache-2.0
// The policies of RowCache: what a use and an admission change, and which slot of a set gives way.
// A slot that is pinned never does.
#include "features/gather/row_cache.hpp"
#include "features/gather/row_hash.hpp"

#include <algorithm>
#include <cstddef>

namespace penstock::features {

namespace {

constexpr std::uint8_t kS3UsesMax = 3;
// The share of a set that is for rows that came once.
constexpr std::uint32_t kS3Small = 10;
// Preloaded rows are taken to have been used so often.
constexpr std::uint8_t kPreloadedUses = 8;

// 0 means that there is no value.
constexpr std::uint16_t ghost_of(std::uint64_t hash) {
    return static_cast<std::uint16_t>((hash >> 8) | 1);
}

}  // namespace

void RowCache::use(std::uint32_t slot) {
    if (policy_ == RowPolicy::kClock) {
        uses_[slot] = 1;
    } else if (policy_ == RowPolicy::kS3Fifo && uses_[slot] < kS3UsesMax) {
        ++uses_[slot];
    }
}

void RowCache::enter(std::uint32_t slot, const Row& row, bool preloaded) {
    switch (policy_) {
        case RowPolicy::kStatic:
            return;
        case RowPolicy::kClock:
            uses_[slot] = preloaded ? 1 : 0;
            return;
        case RowPolicy::kS3Fifo:
            uses_[slot] = 0;
            s3_queue(slot, forget_ghost(row.set, row.hash) || preloaded);
            return;
        case RowPolicy::kWindow:
            words_[slot] = hinted_.mask_of(row.id);
            uses_[slot] =
                std::max(counts_.count(row.hash), preloaded ? kPreloadedUses : std::uint8_t{0});
            return;
    }
}

bool RowCache::all_pinned(Set set) const {
    const auto begin = pins_.begin() + set.first;
    return std::find(begin, begin + set.ways, 0) == begin + set.ways;
}

std::uint32_t RowCache::victim(const Row& row) {
    if (all_pinned(row.set) && (policy_ != RowPolicy::kWindow || all_pinned(row.other))) {
        ++stats_.pinned;
        return kNoSlot;
    }
    switch (policy_) {
        case RowPolicy::kStatic:
            return kNoSlot;
        case RowPolicy::kClock:
            return clock_victim(row.set);
        case RowPolicy::kS3Fifo:
            return s3_victim(row.set);
        case RowPolicy::kWindow:
            return window_victim(row);
    }
    return kNoSlot;
}

// One slot at least is not pinned, and after a round it is not used either.
std::uint32_t RowCache::clock_victim(Set set) {
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

void RowCache::s3_queue(std::uint32_t slot, bool in_main) {
    words_[slot] = stamp_ | (in_main ? 1 : 0);
    stamp_ += 2;
}

// The slot of a queue that came first and is not pinned. Numbers wrap: what counts is how long ago.
std::uint32_t RowCache::s3_oldest(Set set, bool in_main) const {
    std::uint32_t best = kNoSlot;
    for (std::uint32_t slot = set.first; slot < set.first + set.ways; ++slot) {
        if (pins_[slot] == 0 && (words_[slot] & 1) == (in_main ? 1U : 0U) &&
            (best == kNoSlot || stamp_ - words_[slot] > stamp_ - words_[best])) {
            best = slot;
        }
    }
    return best;
}

std::uint32_t RowCache::s3_victim(Set set) {
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
                remember_ghost(set, row_hash(ids_[slot]));
            }
            return slot;
        }
    }
}

std::span<std::uint16_t> RowCache::ghosts_of(Set set) {
    return std::span(ghosts_).subspan(set.first, set.ways);
}

void RowCache::remember_ghost(Set set, std::uint64_t hash) {
    std::uint8_t& next = hands_[set.number];
    ghosts_of(set)[next] = ghost_of(hash);
    next = static_cast<std::uint8_t>((next + 1U) % set.ways);
}

bool RowCache::forget_ghost(Set set, std::uint64_t hash) {
    const std::span<std::uint16_t> ghosts = ghosts_of(set);
    const auto found = std::find(ghosts.begin(), ghosts.end(), ghost_of(hash));
    if (found == ghosts.end()) {
        return false;
    }
    *found = 0;
    return true;
}

// Belady's choice as far as hints reach, then the least used; and none that would be needed before
// the row that comes.
std::uint32_t RowCache::window_victim(const Row& row) {
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
    look_in(row.set);
    if (sets_ > 1) {
        look_in(row.other);
    }
    const std::uint32_t its = hinted_.distance(hinted_.mask_of(row.id));
    const bool is_sooner =
        its < best_distance || (its == best_distance && counts_.count(row.hash) > uses_[best]);
    return is_sooner ? best : kNoSlot;
}

}  // namespace penstock::features
