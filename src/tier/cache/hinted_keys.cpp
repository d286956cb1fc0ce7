// SPDX-License-Identifier: Apache-2.0
#include "tier/cache/hinted_keys.hpp"

#include "tier/cache/key_hash.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace penstock::tier {

namespace {

// Batches may be looked up out of order by so many, as threads of a loader do.
constexpr std::uint64_t kLate = 8;
constexpr std::size_t kSamples = 64;
constexpr std::size_t kRowsMin = 1024;

}  // namespace

std::size_t HintedKeys::place_of(const std::vector<Key>& keys, std::uint64_t id) const {
    const std::size_t last = keys.size() - 1;
    std::size_t place = key_hash(id) & last;
    while (keys[place].is_key && keys[place].id != id) {
        place = (place + 1) & last;
    }
    return place;
}

std::size_t HintedKeys::size_for(std::size_t keys) const {
    return std::bit_ceil(std::max(kRowsMin, keys + keys / 2));
}

// The table without the keys of batches that are over, with room for so many more. False: it would
// be too large.
bool HintedKeys::make_room(std::size_t keys, std::uint64_t bytes_max) {
    if (!keys_.empty() && (used_ + keys) * 4 <= keys_.size() * 3) {
        return true;
    }
    if (keys > bytes_max / sizeof(Key)) {
        return false;
    }
    const auto is_live = [this](const Key& key) { return key.is_key && (key.mask & live_) != 0; };
    const auto live = static_cast<std::size_t>(std::count_if(keys_.begin(), keys_.end(), is_live));
    const std::size_t size = size_for(live + keys);
    if (size > kRowsMin && size > bytes_max / sizeof(Key)) {
        return false;
    }
    std::vector<Key> made(size);
    for (const Key& key : keys_) {
        if (is_live(key)) {
            made[place_of(made, key.id)] = {key.id, key.mask & live_, true};
        }
    }
    keys_ = std::move(made);
    used_ = live;
    return true;
}

std::uint64_t HintedKeys::take(std::span<const std::uint64_t> ids, std::span<std::uint32_t> masks,
                               std::uint64_t bytes_max) {
    if (!make_room(ids.size(), bytes_max)) {
        return 0;
    }
    const std::uint32_t bit = bit_of(next_);
    if ((live_ & bit) != 0) {  // 32 batches before this one, and never looked up
        end(next_ - 32);
    }
    if ((stale_ & bit) != 0) {
        for (Key& key : keys_) {
            key.mask &= live_;
        }
        for (std::uint32_t& mask : masks) {
            mask &= live_;
        }
        stale_ = 0;
    }
    for (const std::uint64_t id : ids) {
        Key& key = keys_[place_of(keys_, id)];
        if (!key.is_key) {
            key = {id, 0, true};
            ++used_;
        }
        key.mask |= bit;
    }
    live_ |= bit;
    return next_++;
}

std::uint32_t HintedKeys::mask_of(std::uint64_t id) const {
    if (live_ == 0) {
        return 0;
    }
    return keys_[place_of(keys_, id)].mask;
}

std::uint32_t HintedKeys::distance(std::uint32_t mask) const {
    const std::uint32_t live = mask & live_;
    return live == 0 ? kNever
                     : static_cast<std::uint32_t>(
                           std::countr_zero(std::rotr(live, static_cast<int>(first_ % 32))));
}

bool HintedKeys::is_outstanding(std::uint64_t number) const {
    return number >= first_ && number < next_ && (live_ & bit_of(number)) != 0;
}

std::uint32_t HintedKeys::outstanding() const {
    return static_cast<std::uint32_t>(std::popcount(live_));
}

std::uint64_t HintedKeys::like(std::span<const std::uint64_t> ids) const {
    if (live_ == 0 || ids.empty()) {
        return 0;
    }
    const std::size_t samples = std::min(ids.size(), kSamples);
    std::array<std::size_t, 32> votes{};
    for (std::size_t i = 0; i < samples; ++i) {
        std::uint32_t mask = mask_of(ids[i * ids.size() / samples]) & live_;
        for (; mask != 0; mask &= mask - 1) {
            ++votes[static_cast<std::size_t>(std::countr_zero(mask))];
        }
    }
    std::uint64_t best = 0;
    std::size_t votes_of_best = 0;
    for (std::uint64_t number = first_; number < next_; ++number) {
        if (is_outstanding(number) && votes[number % 32] > votes_of_best) {
            best = number;
            votes_of_best = votes[number % 32];
        }
    }
    return votes_of_best * 4 >= samples * 3 ? best : 0;
}

void HintedKeys::end(std::uint64_t number) {
    live_ &= ~bit_of(number);
    stale_ |= bit_of(number);
    while (first_ < next_ && !is_outstanding(first_)) {
        ++first_;
    }
}

std::uint32_t HintedKeys::use(std::uint64_t number) {
    std::uint32_t given_up = 0;
    while (first_ + kLate < number) {
        end(first_);
        ++given_up;
    }
    end(number);
    return given_up;
}

std::uint32_t HintedKeys::drop() {
    const std::uint32_t given_up = outstanding();
    stale_ |= live_;
    live_ = 0;
    first_ = next_;
    keys_ = std::vector<Key>();  // its memory goes, too
    used_ = 0;
    return given_up;
}

std::uint64_t HintedKeys::bytes() const {
    return keys_.size() * sizeof(Key);
}

}  // namespace penstock::tier
