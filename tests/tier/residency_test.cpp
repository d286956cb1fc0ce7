// SPDX-License-Identifier: Apache-2.0
// What stays in memory, for models of any shape and budgets of any size.
#include "tier/residency.hpp"

#include "base/align.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace penstock::tier {
namespace {

struct Model {
    std::vector<std::uint64_t> bytes;
    UnitTensors units;

    [[nodiscard]] std::uint64_t total() const {
        return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
    }
    void add(const std::vector<std::uint64_t>& unit) {
        std::vector<std::size_t>& tensors = units.emplace_back();
        for (const std::uint64_t one : unit) {
            tensors.push_back(bytes.size());
            bytes.push_back(one);
        }
    }
};

// Llama of 1.1 B parameters in bf16: the layers, and a head that is larger than one.
Model llama() {
    Model out;
    for (int i = 0; i < 22; ++i) {
        out.add({8 * base::kMiB, base::kMiB, base::kMiB, 8 * base::kMiB, 22 * base::kMiB,
                 22 * base::kMiB, 22 * base::kMiB, 4096, 4096});
    }
    out.add({4096});
    out.add({125 * base::kMiB});
    return out;
}

TEST(Residency, UsesTheBudget) {
    const Model model = llama();
    for (const double share : {0.15, 0.25, 0.35, 0.5, 0.7, 0.9}) {
        const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(model.total()));
        const Residency out = choose_residency(model.bytes, model.units, budget, 2);
        EXPECT_LE(out.used_bytes(), budget) << share;
        EXPECT_GE(static_cast<double>(out.used_bytes()), 0.97 * static_cast<double>(budget))
            << share;
        // The best that any choice can do: the budget less two slots of what is read of a layer.
        const double slots = 2.0 * static_cast<double>(out.read_bytes) / 22;
        EXPECT_LE(static_cast<double>(out.read_bytes),
                  1.06 * (static_cast<double>(model.total() - budget) + slots))
            << share;
    }
}

TEST(Residency, ALargeHeadDoesNotSizeTheSlots) {
    const Model model = llama();
    const Residency out = choose_residency(model.bytes, model.units, model.total() / 3, 2);
    EXPECT_TRUE(out.stays[model.bytes.size() - 1]);
    EXPECT_LT(out.slot_bytes, 90 * base::kMiB);
}

TEST(Residency, ReadsAreEvenOverTheDepth) {
    const Model model = llama();
    const Residency out = choose_residency(model.bytes, model.units, model.total() / 2, 2);
    std::vector<std::uint64_t> read;
    for (std::size_t unit = 0; unit < 22; ++unit) {
        std::uint64_t bytes = 0;
        for (const std::size_t tensor : model.units[unit]) {
            bytes += out.stays[tensor] ? 0 : model.bytes[tensor];
        }
        read.push_back(bytes);
    }
    // A tensor is the smallest piece, so two halves of the depth differ by one a few layers.
    const std::uint64_t first = std::accumulate(read.begin(), read.begin() + 11, std::uint64_t{0});
    const std::uint64_t second = std::accumulate(read.begin() + 11, read.end(), std::uint64_t{0});
    EXPECT_LT(std::max(first, second) - std::min(first, second), 2 * 22 * base::kMiB);
}

TEST(Residency, WhatFitsStays) {
    const Model model = llama();
    const Residency out = choose_residency(model.bytes, model.units, 2 * model.total(), 2);
    EXPECT_EQ(out.read_bytes, 0U);
    EXPECT_EQ(out.slots, 0U);
    EXPECT_TRUE(std::all_of(out.stays.begin(), out.stays.end(), [](bool stays) { return stays; }));
}

TEST(Residency, NoTensorsNeedNothing) {
    EXPECT_EQ(choose_residency({}, {}, 0, 2).used_bytes(), 0U);
    EXPECT_EQ(choose_residency(std::vector<std::uint64_t>{0}, {{0}, {}}, 0, 2).used_bytes(), 0U);
}

// A budget of any model is kept or refused with a least one that works, and more memory never
// reads more than the level's steps explain.
TEST(Residency, AnyModel) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        std::mt19937_64 random(seed);
        Model model;
        const std::size_t units = 1 + random() % 12;
        for (std::size_t unit = 0; unit < units; ++unit) {
            std::vector<std::uint64_t> tensors(random() % 9);
            for (std::uint64_t& bytes : tensors) {
                bytes = random() % (std::uint64_t{1} << (1 + random() % 26));
            }
            model.add(tensors);
            if (!model.bytes.empty() && random() % 4 == 0) {  // tied
                model.units.back().push_back(random() % model.bytes.size());
            }
        }
        const auto slots = static_cast<std::uint32_t>(2 + random() % 3);
        const Residency least = choose_residency(model.bytes, model.units, 0, slots);
        const std::uint64_t budget = random() % (model.total() + 100'000);
        const Residency out = choose_residency(model.bytes, model.units, budget, slots);
        EXPECT_EQ(out.used_bytes() > budget, budget < least.used_bytes()) << seed;
        const Residency again =
            choose_residency(model.bytes, model.units, least.used_bytes(), slots);
        EXPECT_LE(again.used_bytes(), least.used_bytes()) << seed;
        for (const std::vector<std::size_t>& unit : model.units) {
            std::uint64_t slot = 0;
            for (const std::size_t tensor : std::vector<std::size_t>(unit)) {
                slot += out.stays[tensor] ? 0 : model.bytes[tensor];
            }
            // A tensor that a unit has twice is read once.
            EXPECT_LE(slot, out.slot_bytes + (unit.empty() ? 0 : model.bytes[unit.back()])) << seed;
        }
    }
}

// Allocations count as the driver makes them, so that a budget of a GPU is kept.
TEST(Residency, MemoryOfAGpuIsCountedInTheBlocksOfTheDriver) {
    constexpr auto kGpu = MemoryKind::kDevice;
    constexpr std::uint64_t kBlock = 2 << 20;
    EXPECT_EQ(memory_of_resident(0, kGpu), 0U);
    EXPECT_EQ(memory_of_resident(100, kGpu), 512U);
    EXPECT_EQ(memory_of_resident(kBlock - 64, kGpu), kBlock);
    EXPECT_EQ(memory_of_resident(kBlock, kGpu), 2 * kBlock);  // its address keeps its residue
    EXPECT_EQ(memory_of_resident(kBlock, MemoryKind::kHost), kBlock + 4096);
    const std::vector<std::uint64_t> bytes(12, 3 * kBlock / 2);
    const UnitTensors units{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}};
    for (std::uint64_t budget = 10 * kBlock; budget < 30 * kBlock; budget += kBlock / 2) {
        const Residency chosen = choose_residency(bytes, units, budget, 2, kGpu);
        std::uint64_t kept = 0;
        for (const bool stays : chosen.stays) {
            kept += stays ? 2 * kBlock : 0;
        }
        EXPECT_EQ(chosen.resident_bytes, kept);
        EXPECT_EQ(chosen.slot_bytes % kBlock, 0U);
        EXPECT_LE(chosen.used_bytes(), budget);
    }
}

}  // namespace
}  // namespace penstock::tier
