// SPDX-License-Identifier: Apache-2.0
#include "tier/unit_order.hpp"

#include <algorithm>
#include <utility>

namespace penstock::tier {

UnitOrder::UnitOrder(std::size_t units)
    : seen_(units),
      learned_(units, kNone),
      list_next_(units + 1),
      list_before_(units + 1),
      is_new_(units, true) {
    for (std::size_t i = 0; i <= units; ++i) {
        list_next_[i] = (i + 1) % (units + 1);
        list_before_[i] = (i + units) % (units + 1);
    }
}

std::size_t UnitOrder::after(std::size_t unit) const {
    std::size_t next = cursor_;
    if (unit != kNone) {
        if (learned_[unit] != kNone) {
            return learned_[unit];
        }
        next = is_new_[unit] ? list_next_[unit] : cursor_;
    }
    return next == seen_.size() ? first_ : next;  // at the end of the list: the next pass
}

// The next units to read that nobody holds, at most `count`.
std::vector<std::size_t> UnitOrder::expected(std::size_t count,
                                             std::span<const SlotUse> slots) const {
    std::vector<std::size_t> out;
    std::size_t unit = after(last_);
    for (std::size_t step = 0; step < seen_.size() && out.size() < count; ++step) {
        const bool is_held = std::any_of(slots.begin(), slots.end(), [unit](const SlotUse& one) {
            return one.unit == unit && one.held != 0;
        });
        if (reads_[unit] && !is_held && std::find(out.begin(), out.end(), unit) == out.end()) {
            out.push_back(unit);
        }
        unit = after(unit);
    }
    return out;
}

void UnitOrder::take_from_list(std::size_t unit) {
    if (reads_[unit] || cursor_ == unit) {
        cursor_ = list_next_[unit];
    }
    list_next_[list_before_[unit]] = list_next_[unit];
    list_before_[list_next_[unit]] = list_before_[unit];
    is_new_[unit] = false;
}

void UnitOrder::follow(std::size_t unit) {
    if (reads_[unit]) {
        const std::vector<std::size_t> next = expected(1, {});
        right_ = next.size() == 1 && next[0] == unit ? right_ + 1 : 0;
    }
    if (begins_pass(unit)) {
        seen_.assign(seen_.size(), false);
        first_ = unit;
        needed_ = std::max<std::size_t>(1, needed_ / 2);
    }
    seen_[unit] = true;
    const std::size_t before = last_ == kNone ? kNone : std::exchange(learned_[last_], unit);
    if (is_new_[unit]) {
        take_from_list(unit);
        if (!reads_[unit] && before != unit) {
            learned_[unit] = before;  // what was expected is expected still
        }
    }
    last_ = unit;
}

std::vector<UnitOrder::Start> UnitOrder::starts(std::span<const SlotUse> slots) const {
    const auto free = static_cast<std::size_t>(std::count_if(
        slots.begin(), slots.end(), [](const SlotUse& one) { return one.held == 0; }));
    const std::size_t most = is_sure() ? free : std::min(free, slots.size() - 1);
    const std::vector<std::size_t> wanted = expected(most, slots);
    auto waiting = static_cast<std::size_t>(std::count_if(
        slots.begin(), slots.end(), [](const SlotUse& one) { return one.is_waiting(); }));
    std::vector<bool> is_taken(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
        is_taken[i] = slots[i].held != 0 ||
                      std::find(wanted.begin(), wanted.end(), slots[i].unit) != wanted.end();
    }
    std::vector<Start> out;
    for (const std::size_t unit : wanted) {
        if (std::any_of(slots.begin(), slots.end(),
                        [unit](const SlotUse& one) { return one.unit == unit; })) {
            continue;
        }
        if (!is_sure() && waiting >= most) {
            break;
        }
        // A slot with nothing to lose comes first.
        std::size_t chosen = slots.size();
        for (std::size_t i = 0; i < slots.size(); ++i) {
            const bool is_better =
                chosen == slots.size() || (slots[chosen].is_waiting() && !slots[i].is_waiting());
            if (!is_taken[i] && is_better) {
                chosen = i;
            }
        }
        if (chosen == slots.size() || (!is_sure() && slots[chosen].is_waiting())) {
            break;
        }
        is_taken[chosen] = true;
        waiting += slots[chosen].is_waiting() ? 0 : 1;
        out.push_back({chosen, unit});
    }
    return out;
}

std::optional<std::size_t> UnitOrder::slot_on_demand(std::span<const SlotUse> slots) const {
    const std::vector<std::size_t> next = expected(slots.size(), slots);
    // The higher the better: an empty one, one that was used, one that comes last or not at all.
    const auto rank = [&](const SlotUse& one) {
        if (one.unit == kNone) {
            return next.size() + 2;
        }
        const auto place = std::find(next.begin(), next.end(), one.unit) - next.begin();
        return one.is_waiting() ? static_cast<std::size_t>(place) : next.size() + 1;
    };
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i].held == 0 && (!best || rank(slots[i]) > rank(slots[*best]))) {
            best = i;
        }
    }
    return best;
}

void UnitOrder::gave_up() {
    needed_ = std::min(2 * needed_, seen_.size());
}

}  // namespace penstock::tier
