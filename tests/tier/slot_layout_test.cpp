// SPDX-License-Identifier: Apache-2.0
// Places in a slot: congruent to the file, apart from one another, and no longer than planned.
#include "tier/slot_layout.hpp"

#include "tier/residency.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace penstock::tier {
namespace {

TEST(SlotLayout, WhatAdjoinsInTheFileAdjoinsHere) {
    const std::vector<StoredTensor> tensors{stored_tensor({{0, 5000, 100}}, 100, 2),
                                            stored_tensor({{0, 5100, 8000}}, 8000, 2)};
    EXPECT_THAT(place_in_slot(tensors, std::vector<std::size_t>{1, 0}),
                testing::ElementsAre(1004, 904));
}

TEST(SlotLayout, AMisalignedTensorIsMoved) {
    const std::vector<StoredTensor> tensors{stored_tensor({{0, 4097, 64}}, 64, 2)};
    EXPECT_THAT(place_in_slot(tensors, std::vector<std::size_t>{0}), testing::ElementsAre(0));
}

// A loader copies them to memory of its own, which is aligned to a line.
TEST(SlotLayout, ATensorOfSeveralStretchesIsAlignedToALine) {
    const std::vector<StoredTensor> tensors{stored_tensor({{0, 1000, 100}, {0, 5000, 100}}, 200, 4),
                                            stored_tensor({{0, 6400, 64}, {0, 8000, 64}}, 128, 4)};
    EXPECT_THAT(place_in_slot(tensors, std::vector<std::size_t>{0, 1}),
                testing::ElementsAre(0, 6400 - 4096));
}

TEST(SlotLayout, AnyTensors) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        std::mt19937_64 random(seed);
        std::vector<StoredTensor> tensors;
        std::vector<std::size_t> chosen;
        std::uint64_t planned = 0;
        for (std::uint64_t end = 0; tensors.size() < 1 + seed % 20;) {
            const std::uint64_t bytes = random() % 20'000;
            const std::uint64_t offset = end + (random() % 3 == 0 ? random() % 9000 : 0);
            end = offset + bytes;
            tensors.push_back(stored_tensor(
                {{static_cast<std::uint32_t>(random() % 2), offset, bytes}}, bytes, 2));
            if (random() % 2 == 0) {
                chosen.push_back(tensors.size() - 1);
                planned += memory_in_slot(bytes);
            }
        }
        std::shuffle(chosen.begin(), chosen.end(), random);
        const std::vector<std::uint64_t> places = place_in_slot(tensors, chosen);
        std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
        for (std::size_t i = 0; i < chosen.size(); ++i) {
            const StoredTensor& tensor = tensors[chosen[i]];
            EXPECT_EQ(places[i] % (tensor.keeps_place() ? 4096 : 64),
                      tensor.keeps_place() ? tensor.offset() % 4096 : tensor.residue);
            EXPECT_LE(places[i] + tensor.bytes, planned) << seed;
            if (tensor.bytes != 0) {
                ranges.emplace_back(places[i], places[i] + tensor.bytes);
            }
        }
        std::sort(ranges.begin(), ranges.end());
        for (std::size_t i = 1; i < ranges.size(); ++i) {
            EXPECT_LE(ranges[i - 1].second, ranges[i].first) << seed;
        }
    }
}

TEST(ImageLayout, AnImageIsLikeTheFiles) {
    const std::vector<StoredTensor> tensors{stored_tensor({{1, 100, 1000}}, 1000, 2),
                                            stored_tensor({{0, 5100, 8000}}, 8000, 2),
                                            stored_tensor({{0, 5000, 100}}, 100, 2)};
    const ImageLayout layout = lay_out_image(tensors, std::vector<std::uint64_t>{14'000, 2000});
    EXPECT_THAT(layout.places, testing::ElementsAre(16'384 + 100, 5100, 5000));
    EXPECT_EQ(layout.bytes, 16'384U + 4096U);
}

// One may be given back while the other stays: no byte, and no whole page of one, is another's.
TEST(ImageLayout, TensorsThatShareBytesOfAFileShareNoMemory) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        std::mt19937_64 random(seed);
        std::vector<StoredTensor> tensors;
        const std::vector<std::uint64_t> file_bytes{40'000, 60'001};
        while (tensors.size() < 1 + seed % 20) {
            const auto file = static_cast<std::uint32_t>(random() % 2);
            const std::uint64_t offset = random() % 3 == 0 && !tensors.empty()
                                             ? tensors.back().offset() % 20'000
                                             : random() % 20'000;
            const std::uint64_t bytes = 1 + random() % 20'000;
            tensors.push_back(stored_tensor({{file, offset, bytes}}, bytes, 2));
        }
        const ImageLayout layout = lay_out_image(tensors, file_bytes);
        std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            EXPECT_EQ(layout.places[i] % (tensors[i].keeps_place() ? 4096 : 64),
                      tensors[i].keeps_place() ? tensors[i].offset() % 4096 : tensors[i].residue);
            ranges.emplace_back(layout.places[i], layout.places[i] + tensors[i].bytes);
        }
        std::sort(ranges.begin(), ranges.end());
        EXPECT_LE(ranges.back().second, layout.bytes) << seed;
        for (std::size_t i = 1; i < ranges.size(); ++i) {
            EXPECT_LE(ranges[i - 1].second, ranges[i].first) << seed;
        }
    }
}

}  // namespace
}  // namespace penstock::tier
