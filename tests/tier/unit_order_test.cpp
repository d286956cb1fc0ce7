// SPDX-License-Identifier: Apache-2.0
// What is read in a pass whose order nobody knew: hardly more than what is needed.
#include "tier/unit_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tier {
namespace {

using Order = std::vector<std::size_t>;

// The slots of a stream, without the bytes.
class Slots {
public:
    Slots(std::vector<bool> reads, std::size_t slots)
        : order_(reads.size()), reads_(std::move(reads)), slots_(slots) {
        order_.set_reads(reads_);
        read_ahead();
    }

    struct Pass {
        std::size_t needed = 0;  // units
        std::size_t read = 0;
        std::size_t on_demand = 0;
    };
    Pass pass(const Order& units) {
        pass_ = {};
        for (const std::size_t unit : units) {
            use(unit);
        }
        return pass_;
    }

private:
    void use(std::size_t unit) {
        order_.follow(unit);
        const auto found = std::find_if(slots_.begin(), slots_.end(),
                                        [unit](const SlotUse& one) { return one.unit == unit; });
        std::size_t slot = static_cast<std::size_t>(found - slots_.begin());
        if (reads_[unit]) {
            ++pass_.needed;
            if (found == slots_.end()) {
                slot = order_.slot_on_demand(slots_).value();
                read(slot, unit);
                ++pass_.on_demand;
            }
            slots_[slot].held = 1;
            slots_[slot].is_used = true;
        }
        read_ahead();
        if (reads_[unit]) {
            slots_[slot].held = 0;
        }
        read_ahead();
    }
    void read_ahead() {
        for (const auto& [slot, unit] : order_.starts(slots_)) {
            read(slot, unit);
        }
    }
    void read(std::size_t slot, std::size_t unit) {
        ASSERT_EQ(slots_[slot].held, 0U);
        if (slots_[slot].is_waiting()) {
            order_.gave_up();
        }
        slots_[slot] = {.unit = unit};
        ++pass_.read;
    }

    UnitOrder order_;
    std::vector<bool> reads_;
    std::vector<SlotUse> slots_;
    Pass pass_;
};

Order in_order(std::size_t units) {
    Order out(units);
    std::iota(out.begin(), out.end(), std::size_t{0});
    return out;
}

// The parts of a layer as Llama lists them, q k v o gate up down norm norm, in the order of use.
constexpr std::size_t kParts = 9;
constexpr std::size_t kUsed[] = {7, 0, 1, 2, 3, 8, 4, 5, 6};

Order llama(std::size_t layers) {
    Order out;
    for (std::size_t layer = 0; layer < layers; ++layer) {
        for (const std::size_t part : kUsed) {
            out.push_back(layer * kParts + part);
        }
    }
    return out;
}

TEST(UnitOrderTest, UnitsThatStayDoNotMoveThePrediction) {
    constexpr std::size_t kLayers = 20;
    for (const std::size_t slots : {2U, 3U, 5U}) {
        std::vector<bool> reads(kLayers * kParts, true);
        for (std::size_t i = 0; i < reads.size(); ++i) {
            reads[i] = i % kParts < 7;
        }
        Slots stream(reads, slots);
        for (int turn = 0; turn < 3; ++turn) {
            const Slots::Pass pass = stream.pass(llama(kLayers));
            EXPECT_LE(pass.read, pass.needed + slots);  // and the first units of the next pass
            EXPECT_EQ(pass.on_demand, 0U);
        }
    }
}

// Norms that are read, all or at random, are predicted wrongly twice a layer.
TEST(UnitOrderTest, WrongPredictionsThrowLittleAway) {
    constexpr std::size_t kLayers = 20;
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 100; ++trial) {
        std::vector<bool> reads(kLayers * kParts, true);
        for (std::size_t i = 0; i < reads.size(); ++i) {
            reads[i] = i % kParts < 7 || trial == 0 || random() % 2 != 0;
        }
        Slots stream(reads, 2);
        const Slots::Pass first = stream.pass(llama(kLayers));
        EXPECT_LE(first.read, first.needed + (trial == 0 ? 2U : 4U)) << trial;
        const Slots::Pass second = stream.pass(llama(kLayers));
        EXPECT_LE(second.read, second.needed + 2) << trial;
        EXPECT_LE(second.on_demand, 1U) << trial;
    }
}

// A unit that is thrown away makes the next one twice as hard to throw away.
TEST(UnitOrderTest, AnyOrderReadsLittleMoreThanItNeedsAndIsLearned) {
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 2000; ++trial) {
        const std::size_t units = 2 + random() % 300;
        const std::size_t slots = 2 + random() % 4;
        std::vector<bool> reads(units);
        for (std::size_t i = 0; i < units; ++i) {
            reads[i] = random() % 4 != 0;
        }
        Order order = in_order(units);
        if (trial % 3 == 0) {
            std::reverse(order.begin(), order.end());
        } else if (trial % 3 == 1) {
            std::shuffle(order.begin(), order.end(), random);
        } else {  // pieces of the list, in any order
            const auto middle = order.begin() + static_cast<std::ptrdiff_t>(random() % units);
            std::rotate(order.begin(), middle, order.end());
            std::reverse(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(units / 3));
        }
        Slots stream(reads, slots);
        const auto may_lose = slots * (std::bit_width(units) + 1);
        const Slots::Pass first = stream.pass(order);
        EXPECT_LE(first.read, first.needed + may_lose) << trial;
        static_cast<void>(stream.pass(order));
        const Slots::Pass third = stream.pass(order);
        EXPECT_LE(third.read, third.needed + slots) << trial;
        EXPECT_EQ(third.on_demand, 0U) << trial;
    }
}

// Experts that a router chooses come in another order each time.
TEST(UnitOrderTest, AnOrderThatCannotBeLearnedThrowsLittleAway) {
    std::mt19937_64 random(3);
    Order order = in_order(200);
    Slots stream(std::vector<bool>(200, true), 2);
    for (int turn = 0; turn < 50; ++turn) {
        std::shuffle(order.begin(), order.end(), random);
        const Slots::Pass pass = stream.pass(order);
        EXPECT_LE(pass.read, pass.needed + 10) << turn;
    }
}

// A vision tower is listed first, and text does not use it.
TEST(UnitOrderTest, UnitsThatAreNeverUsedStopNothing) {
    Order text = in_order(100);
    text.erase(text.begin(), text.begin() + 30);
    Slots stream(std::vector<bool>(100, true), 2);
    const Slots::Pass first = stream.pass(text);
    EXPECT_LE(first.read, first.needed + 4);
    EXPECT_LE(first.on_demand, 5U);
    const Slots::Pass second = stream.pass(text);
    EXPECT_LE(second.read, second.needed + 2);
    EXPECT_EQ(second.on_demand, 0U);
}

// An encoder runs once, a decoder many times, and then the encoder again.
TEST(UnitOrderTest, WhatFollowedLastTimeIsExpectedAgain) {
    const Order whole = in_order(60);
    const Order decoder(whole.begin() + 30, whole.end());
    Slots stream(std::vector<bool>(60, true), 2);
    for (int turn = 0; turn < 3; ++turn) {
        Slots::Pass pass = stream.pass(whole);
        EXPECT_LE(pass.on_demand, turn == 0 ? 0U : 3U) << turn;
        EXPECT_LE(pass.read, pass.needed + 4);
        for (int token = 0; token < 5; ++token) {
            pass = stream.pass(decoder);
            EXPECT_LE(pass.on_demand, token != 0 ? 0U : turn == 0 ? 5U : 3U);
            EXPECT_LE(pass.read, pass.needed + (token == 0 ? 4U : 2U));
        }
    }
}

TEST(UnitOrderTest, UnitsThatChangeToBeReadAreInTheOrderThatWasLearned) {
    UnitOrder order(27);
    order.set_reads(std::vector<bool>(27, false));
    for (const std::size_t unit : llama(3)) {
        order.follow(unit);
    }
    order.set_reads(std::vector<bool>(27, true));
    for (const std::size_t unit : llama(3)) {
        if (unit != 7) {  // what follows the last unit of a pass was not seen yet
            const std::vector<UnitOrder::Start> next = order.starts(std::vector<SlotUse>(2));
            ASSERT_FALSE(next.empty());
            EXPECT_EQ(next[0].unit, unit);
        }
        order.follow(unit);
    }
}

}  // namespace
}  // namespace penstock::tier
