// SPDX-License-Identifier: Apache-2.0
// Which bytes are read from which copy: all of them once, and all devices done at the same time.
#include "weights/read/copies.hpp"

#include "base/align.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace penstock::weights {
namespace {

std::vector<double> busy(const std::vector<CopyRead>& reads, const std::vector<double>& speeds) {
    std::vector<double> out(speeds.size());
    for (const CopyRead& read : reads) {
        out[read.folder] += static_cast<double>(read.part.bytes) / speeds[read.folder];
    }
    return out;
}

TEST(Copies, FullCopiesAreReadInTheRatioOfTheSpeeds) {
    const std::vector<double> speeds{300e6, 100e6};
    const std::vector<CopyRead> reads =
        share_reads(std::vector<WantedBytes>{{0, 4096, 40 * base::kMiB},
                                             {0, 4096 + 40 * base::kMiB, 40 * base::kMiB}},
                    std::vector<std::vector<std::uint32_t>>{{0, 1}}, speeds);
    EXPECT_EQ(reads.size(), 3U);  // one cut
    const std::vector<double> ends = busy(reads, speeds);
    EXPECT_NEAR(ends[0], ends[1], 0.001);
}

TEST(Copies, WhatOneFolderAloneHasIsItsWork) {
    const std::vector<double> speeds{100e6, 100e6};
    const std::vector<CopyRead> reads =
        share_reads(std::vector<WantedBytes>{{0, 0, 30 * base::kMiB}, {1, 0, 40 * base::kMiB}},
                    std::vector<std::vector<std::uint32_t>>{{0}, {0, 1}}, speeds);
    const std::vector<double> ends = busy(reads, speeds);
    EXPECT_NEAR(ends[0], ends[1], 0.001);
    EXPECT_EQ(reads[0].folder, 0U);
    EXPECT_EQ(reads[0].part.bytes, 30 * base::kMiB);
}

// A folder that has more to do alone than all others with it takes no part in what is shared.
TEST(Copies, ABusyFolderTakesNoPart) {
    const std::vector<double> speeds{100e6, 100e6, 100e6};
    const std::vector<CopyRead> reads =
        share_reads(std::vector<WantedBytes>{{0, 0, 90 * base::kMiB}, {1, 0, 20 * base::kMiB}},
                    std::vector<std::vector<std::uint32_t>>{{1}, {0, 1, 2}}, speeds);
    for (const CopyRead& read : reads) {
        EXPECT_EQ(read.folder == 1, read.part.file == 0);
    }
    const std::vector<double> ends = busy(reads, speeds);
    EXPECT_NEAR(ends[0], ends[2], 0.001);
}

TEST(Copies, SmallTensorsAreNotCut) {
    const std::vector<CopyRead> reads =
        share_reads(std::vector<WantedBytes>{{0, 10, 5000}, {0, 5010, 0}, {0, 9000, 3000}},
                    std::vector<std::vector<std::uint32_t>>{{0, 1}}, std::vector{1e9, 1e9});
    EXPECT_EQ(reads.size(), 3U);
}

// Whatever is wanted: each byte once, in the order of the list, from a folder that has it.
TEST(Copies, AnyBytesAreReadOnce) {
    std::vector<std::byte> memory(8 * base::kMiB);
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        std::mt19937_64 random(seed);
        const std::size_t folders = 1 + random() % 4;
        std::vector<double> speeds(folders);
        std::generate(speeds.begin(), speeds.end(),
                      [&] { return static_cast<double>(1 + random() % 5000) * 1e6; });
        std::vector<std::vector<std::uint32_t>> having(1 + random() % 4);
        for (auto& list : having) {
            for (std::uint32_t folder = 0; folder < folders; ++folder) {
                if (random() % 2 == 0) {
                    list.push_back(folder);
                }
            }
            if (list.empty()) {
                list.push_back(static_cast<std::uint32_t>(random() % folders));
            }
        }
        std::vector<WantedBytes> wanted;
        for (std::size_t i = 0; i < 1 + seed % 12; ++i) {
            const std::uint64_t bytes =
                random() % 4 == 0 ? random() % 300 : random() % memory.size();
            wanted.push_back({static_cast<std::uint32_t>(random() % having.size()),
                              random() % (1 << 30), bytes, memory.data()});
        }
        const std::vector<CopyRead> reads = share_reads(wanted, having, speeds);
        auto read = reads.begin();
        for (const WantedBytes& one : wanted) {
            std::uint64_t done = 0;
            do {
                ASSERT_NE(read, reads.end());
                ASSERT_EQ(read->part.file, one.file);
                ASSERT_EQ(read->part.offset, one.offset + done);
                ASSERT_EQ(read->part.into, one.into + done);
                ASSERT_TRUE(
                    std::count(having[one.file].begin(), having[one.file].end(), read->folder));
                done += (read++)->part.bytes;
            } while (done < one.bytes);
            ASSERT_EQ(done, one.bytes);
        }
        ASSERT_EQ(read, reads.end());
    }
}

}  // namespace
}  // namespace penstock::weights
