// SPDX-License-Identifier: Apache-2.0
// The header of a feature file: what is written is read, and no other bytes are believed.
#include "features/files/feature_layout.hpp"

#include "stream/checksum.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock::features {
namespace {

using testing::HasSubstr;

// Two tables in two parts.
Directory sample() {
    Directory out;
    out.parts = {{"/a/x.part0", 16384, 16384}, {"/b/x.part1", 12288, 12288}};
    out.tables = {{"paper", "F32", {10}, 5, 40, 64, 2, {4096, 4096}},
                  {"author", "I8", {2, 3}, 1, 6, 6, 1, {8192, 8192}}};
    out.sums_offset = 4096;
    out.sums = 3;
    out.sums_sum = 77;
    return out;
}

Preamble preamble_of(const std::vector<std::byte>& directory) {
    return {.file_bytes = 4096 + 24 + directory.size(),
            .directory_offset = 4096 + 24,
            .directory_bytes = directory.size(),
            .directory_sum = stream::content_hash(directory),
            .id = 9};
}

base::Result<Directory> read_back(const Directory& directory) {
    const auto bytes = encode(directory);
    return decode_directory(bytes, preamble_of(bytes), "x");
}

std::string refusal(const Directory& directory) {
    const auto result = read_back(directory);
    return result ? "it was taken" : result.error().message;
}

TEST(FeatureLayout, IsReadAsItWasWritten) {
    const Directory written = sample();
    const auto bytes = encode(written);
    const Preamble preamble = preamble_of(bytes);
    const Block block = encode(preamble);
    const auto start = decode_preamble(block, preamble.file_bytes);
    ASSERT_TRUE(start) << start.error().message;
    EXPECT_EQ(start->directory_offset, preamble.directory_offset);
    EXPECT_EQ(start->id, 9U);
    const auto read = decode_directory(bytes, *start);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(encode(*read), bytes);
    EXPECT_EQ(read->tables[1].row_shape, written.tables[1].row_shape);
    const PartPreamble part{.file_bytes = 16384, .id = 9, .part = 1, .parts = 2};
    const auto other = decode_part(encode(part), 16384);
    ASSERT_TRUE(other) << other.error().message;
    EXPECT_EQ(other->part, 1U);
    EXPECT_EQ(other->parts, 2U);
}

// What feature_fuzz begins with (fuzz/corpus/feature): `ok_*` is read, anything else is refused.
TEST(FeatureLayout, OfTheCorpusTheRightOnesAreRead) {
    std::size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/fuzz/corpus/feature")) {
        std::ifstream in(entry.path(), std::ios::binary);
        const std::string text((std::istreambuf_iterator<char>(in)), {});
        const auto bytes = std::as_bytes(std::span(text));
        const Preamble preamble{.file_bytes = kFileBytesMax,
                                .directory_offset = std::uint64_t{1} << 40U,
                                .directory_bytes = bytes.size(),
                                .directory_sum = stream::content_hash(bytes),
                                .id = 1};
        const auto read = decode_directory(bytes, preamble);
        const std::string name = entry.path().filename().string();
        EXPECT_EQ(read.has_value(), name.starts_with("ok_")) << name;
        ++count;
    }
    EXPECT_GE(count, 9U);
}

TEST(FeatureLayout, EveryCutAndEveryFlippedBitIsRefused) {
    const auto bytes = encode(sample());
    const Preamble preamble = preamble_of(bytes);
    const Block block = encode(preamble);
    for (std::size_t length = 0; length < block.size(); ++length) {
        EXPECT_FALSE(decode_preamble(std::span(block).first(length), preamble.file_bytes));
    }
    for (std::size_t bit = 0; bit < block.size() * 8; ++bit) {
        Block other = block;
        other[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        EXPECT_FALSE(decode_preamble(other, preamble.file_bytes)) << bit;
        EXPECT_FALSE(decode_part(other, preamble.file_bytes)) << bit;
    }
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        EXPECT_FALSE(decode_directory(std::span(bytes).first(length), preamble));
    }
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        auto other = bytes;
        other[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        EXPECT_FALSE(decode_directory(other, preamble)) << bit;
    }
    EXPECT_THAT(decode_preamble(block, preamble.file_bytes - 1).error().message,
                HasSubstr("cut short"));
    EXPECT_THAT(decode_preamble(block, preamble.file_bytes + 1).error().message,
                HasSubstr("appended"));
}

// With right checksums any numbers may come.
TEST(FeatureLayout, ForgedDirectoriesAreRefusedOrHarmless) {
    const auto sound = encode(sample());
    std::mt19937_64 random(7);
    int taken = 0;
    for (int i = 0; i < 60'000; ++i) {
        auto bytes = sound;
        const int changes = 1 + static_cast<int>(random() % 3);
        for (int c = 0; c < changes; ++c) {
            const std::size_t at = random() % bytes.size();
            bytes[at] = static_cast<std::byte>(random() % 3 == 0 ? 0xFF : random() % 256);
        }
        if (random() % 8 == 0) {
            bytes.resize(random() % bytes.size());
        }
        Preamble preamble = preamble_of(bytes);
        preamble.directory_offset = 4096 + 24;
        const auto read = decode_directory(bytes, preamble);
        if (!read) {
            EXPECT_EQ(read.error().code, ErrorCode::kDamaged);
            continue;
        }
        ++taken;
        const std::uint64_t parts = read->parts.size();
        for (std::uint32_t p = 0; p < parts; ++p) {
            std::vector<std::pair<std::uint64_t, std::uint64_t>> regions;
            for (const Table& table : read->tables) {
                ASSERT_LE(table.row_bytes, table.stride_bytes);
                const std::uint64_t all = bytes_in_part(table, parts, p);
                ASSERT_LE(table.bases[p] + all, read->parts[p].data_end);
                ASSERT_GE(table.bases[p], kBlockBytes);
                if (all != 0) {
                    regions.emplace_back(table.bases[p], table.bases[p] + all);
                }
            }
            std::sort(regions.begin(), regions.end());
            for (std::size_t r = 1; r < regions.size(); ++r) {
                ASSERT_LE(regions[r - 1].second, regions[r].first);
            }
        }
    }
    EXPECT_GT(taken, 0);
}

TEST(FeatureLayout, ImpossibleNumbersAreRefusedByName) {
    Directory other = sample();
    other.tables[1].bases[0] = 4096;
    EXPECT_THAT(refusal(other), HasSubstr("tables 0 and 1 overlap"));
    other = sample();
    other.tables[0].rows = std::uint64_t{1} << 60;
    EXPECT_THAT(refusal(other), HasSubstr("the number of its rows is impossible"));
    other = sample();
    other.tables[0].rows = 1000;
    EXPECT_THAT(refusal(other), HasSubstr("do not lie in part 0"));
    other = sample();
    other.tables[0].row_bytes = 44;
    EXPECT_THAT(refusal(other), HasSubstr("not those of its dtype and shape"));
    other = sample();
    other.tables[0].stride_bytes = 39;
    EXPECT_THAT(refusal(other), HasSubstr("shorter than a row"));
    other = sample();
    other.tables[0].stripe_rows = 3;
    EXPECT_THAT(refusal(other), HasSubstr("stripes"));
    other = sample();
    other.tables[0].bases[1] = 4100;
    EXPECT_THAT(refusal(other), HasSubstr("part 1"));
    other = sample();
    other.tables[1].name = "paper";
    EXPECT_THAT(refusal(other), HasSubstr("two tables have one name"));
    other = sample();
    other.parts[1].path = "/a/x.part0";
    EXPECT_THAT(refusal(other), HasSubstr("two parts are one file"));
    other = sample();
    other.sums = 2;
    EXPECT_THAT(refusal(other), HasSubstr("checksums"));
    other = sample();
    other.tables[0].name = "\xff";
    EXPECT_THAT(refusal(other), HasSubstr("UTF-8"));
    EXPECT_EQ(refusal(sample()), "it was taken");
}

TEST(FeatureLayout, EachRowHasOnePlace) {
    std::mt19937_64 random(3);
    for (int i = 0; i < 200; ++i) {
        const std::uint64_t parts = 1 + random() % 5;
        const std::uint64_t stripe = std::uint64_t{1} << random() % 6;
        const std::uint64_t rows = random() % 300;
        std::vector<std::uint64_t> counts(parts);
        std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
        for (std::uint64_t row = 0; row < rows; ++row) {
            const RowPlace place = place_of(row, stripe, parts);
            ASSERT_LT(place.part, parts);
            ASSERT_EQ(row_at(place, stripe, parts), row);
            ASSERT_TRUE(seen.insert({place.part, place.row}).second);
            ++counts[place.part];
            ASSERT_LT(place.row, rows_in_part(rows, stripe, parts, place.part));
        }
        for (std::uint32_t p = 0; p < parts; ++p) {
            ASSERT_EQ(counts[p], rows_in_part(rows, stripe, parts, p));
        }
    }
}

TEST(FeatureLayout, PaddingIsAddedWhereItPays) {
    EXPECT_EQ(stride_for(4096), 4096U);
    EXPECT_EQ(stride_for(512), 512U);
    EXPECT_EQ(stride_for(400), 400U);    // 512 is 28 % more file for 9 % fewer blocks
    EXPECT_EQ(stride_for(4000), 4096U);  // 2 % more file, half the blocks
    EXPECT_EQ(stride_for(1000), 1024U);
    EXPECT_EQ(stride_for(2056), 2056U);
    EXPECT_EQ(stride_for(5000), 5120U);
    EXPECT_EQ(stride_for(1), 1U);
    EXPECT_DOUBLE_EQ(touched_bytes(4096, 4096, 4096), 4096);
    EXPECT_DOUBLE_EQ(touched_bytes(4096, 4096, 4096, 128), 8192);
    EXPECT_DOUBLE_EQ(touched_bytes(4096, 4096, 512, 128), 4608);
    for (std::uint64_t row = 1; row < 20'000; row += 37) {
        const std::uint64_t stride = stride_for(row);
        ASSERT_GE(stride, row);
        // More file than reads saved: never.
        ASSERT_LE(touched_bytes(row, stride, 4096) * static_cast<double>(stride),
                  touched_bytes(row, row, 4096) * static_cast<double>(row));
    }
}

}  // namespace
}  // namespace penstock::features
