// SPDX-License-Identifier: Apache-2.0
// Predicts which units come next, and which slots may be given to them. Pure arithmetic.
//
// A unit that was used is followed by what followed it last time. Units that were never used are
// expected in the order of the list, from a cursor on:
//
//     list      q k v o gate up down norm_1 norm_2 | q k v ...
//     used      norm_1 q k v o norm_2
//     expected  gate up down | q k v ...        the cursor is at "gate"
//
// A unit that is read from files moves the cursor to what follows it in the list. A unit that stays
// in memory is used as it comes, and moves nothing: modules often list norms last and call them
// first.
//
// A unit that is read ahead and thrown away costs its bytes. So what waits in a slot for its first
// use is thrown away only while predictions come true: after `needed` of them in a row, a number
// that doubles with each unit that is thrown away, and halves with each pass. Before that, one slot
// is left for a unit that nobody expected, which then throws nothing away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace penstock::tier {

struct SlotUse {
    static constexpr std::size_t kNone = ~std::size_t{0};

    std::size_t unit = kNone;
    std::uint32_t held = 0;
    bool is_used = false;  // its unit was acquired since it was read
    [[nodiscard]] bool is_waiting() const { return unit != kNone && held == 0 && !is_used; }
};

class UnitOrder {
public:
    static constexpr std::size_t kNone = SlotUse::kNone;

    explicit UnitOrder(std::size_t units);

    /// Which units are read from files; the others stay in memory. It comes before any other call,
    /// and may change.
    void set_reads(std::vector<bool> reads) { reads_ = std::move(reads); }
    /// Whether a pass begins with this unit: one that is repeated, or the first.
    [[nodiscard]] bool begins_pass(std::size_t unit) const { return last_ == kNone || seen_[unit]; }
    /// Learns that a unit is used now.
    void follow(std::size_t unit);

    /// Units to read now, and the slots to read them into, the next one first. What such a slot has
    /// is not needed any more, or is given up.
    struct Start {
        std::size_t slot;
        std::size_t unit;
    };
    [[nodiscard]] std::vector<Start> starts(std::span<const SlotUse> slots) const;
    /// The slot for a unit that was not read ahead; none if all are held.
    [[nodiscard]] std::optional<std::size_t> slot_on_demand(std::span<const SlotUse> slots) const;
    /// A unit was given up that waited for its first use.
    void gave_up();

private:
    [[nodiscard]] std::size_t after(std::size_t unit) const;
    [[nodiscard]] std::vector<std::size_t> expected(std::size_t count,
                                                    std::span<const SlotUse> slots) const;
    [[nodiscard]] bool is_sure() const { return right_ >= needed_; }
    void take_from_list(std::size_t unit);

    std::vector<bool> reads_;
    std::vector<bool> seen_;            // in this pass
    std::vector<std::size_t> learned_;  // of a unit: what followed it, or kNone
    // The list of units that were never used; its end is a node of its own.
    std::vector<std::size_t> list_next_;
    std::vector<std::size_t> list_before_;
    std::vector<bool> is_new_;  // it is in the list
    std::size_t cursor_ = 0;
    std::size_t first_ = 0;  // of this pass
    std::size_t last_ = kNone;
    std::size_t right_ = 0;   // predictions in a row that came true
    std::size_t needed_ = 8;  // 4 in the first pass, whose order is a guess; 1 from the third on
};

}  // namespace penstock::tier
