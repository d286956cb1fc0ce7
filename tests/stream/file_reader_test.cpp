// SPDX-License-Identifier: Apache-2.0
#include "stream/file_reader.hpp"

#include "format/zip/crc32.hpp"
#include "store/support.hpp"
#include "stream/checksum.hpp"
#include "support/crash_harness.hpp"
#include "support/same_bytes.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <vector>

namespace penstock::stream {
namespace {

using support::pattern;
using test::error_of;

constexpr std::uint64_t kPieceBytes = 256 << 10;

struct Stretch {
    std::uint64_t offset;
    std::uint64_t bytes;
    bool crc;
};

class FileReaderTest : public testing::Test {
protected:
    void put(std::uint64_t bytes) {
        data_ = pattern(bytes, 1);
        file_ = rig_.files().open("/file", {.access = Access::kReadWrite, .create = true});
        rig_.engine()->write(file_, data_);
    }

    // Wanted stretches with true sums, into memory of their own.
    std::vector<Wanted> wanted(const std::vector<Stretch>& stretches) {
        memory_.clear();
        sums_.clear();
        std::vector<Wanted> out;
        for (const Stretch& s : stretches) {
            memory_.emplace_back(s.bytes);
            sums_.emplace_back();
            const auto bytes = std::span<const std::byte>(data_).subspan(s.offset, s.bytes);
            Wanted w{.offset = s.offset, .into = memory_.back()};
            if (s.crc) {
                w.crc = format::crc32(bytes);
            } else {
                for (std::uint64_t at = 0; at < s.bytes; at += kPieceBytes) {
                    sums_.back().push_back(
                        content_hash(bytes.subspan(at, std::min(kPieceBytes, s.bytes - at))));
                }
                w.sums = sums_.back();
                w.piece_bytes = kPieceBytes;
            }
            out.push_back(w);
        }
        return out;
    }

    void expect_read(const std::vector<Stretch>& stretches) {
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            EXPECT_TRUE(support::same_bytes(
                memory_[i], std::span(data_).subspan(stretches[i].offset, memory_[i].size())))
                << i;
        }
    }

    test::CrashRig rig_{1, {}, false};
    File file_;
    std::vector<std::byte> data_;
    std::vector<std::vector<std::byte>> memory_;
    std::vector<std::vector<std::uint64_t>> sums_;
};

TEST_F(FileReaderTest, ReadsStretchesInAnyOrderWithGapsAndOverlaps) {
    put(40 << 20);
    std::mt19937_64 random(7);
    for (int round = 0; round < 8; ++round) {
        std::vector<Stretch> stretches;
        for (int i = 0; i < 30; ++i) {
            const std::uint64_t bytes = random() % (i % 10 == 0 ? 20 << 20 : 5000);
            stretches.push_back({random() % (data_.size() - bytes), bytes, i % 2 == 0});
        }
        const auto list = wanted(stretches);
        EXPECT_FALSE(read_file(*rig_.engine(), file_, list, {.fresh = round % 2 == 0}));
        expect_read(stretches);
        EXPECT_FALSE(check_sums(list));
    }
    EXPECT_FALSE(read_file(*rig_.engine(), file_, {}));
}

TEST_F(FileReaderTest, EveryFlippedByteIsFound) {
    put(9 << 20);
    const std::vector<Stretch> stretches{
        {0, 100, true}, {100, 3 << 20, false}, {4 << 20, 300'000, true}, {5 << 20, 4 << 20, true}};
    std::mt19937_64 random(3);
    for (int round = 0; round < 40; ++round) {
        const auto list = wanted(stretches);
        const std::size_t hit = random() % stretches.size();
        const std::uint64_t at = stretches[hit].offset + random() % stretches[hit].bytes;
        auto damaged = std::byte{1} ^ data_[at];
        rig_.engine()->write(file_, std::span(&damaged, 1), at);
        const auto wrong = read_file(*rig_.engine(), file_, list);
        ASSERT_TRUE(wrong);
        EXPECT_EQ(wrong->wanted, hit);
        EXPECT_LE(wrong->offset, at);
        EXPECT_GT(wrong->offset + wrong->bytes, at);
        EXPECT_NE(wrong->expected, wrong->found);
        EXPECT_FALSE(read_file(*rig_.engine(), file_, list, {.verify = false}));
        rig_.engine()->write(file_, std::span(&data_[at], 1), at);
    }
}

TEST_F(FileReaderTest, AFileThatBecameShorterIsAnError) {
    put(5 << 20);
    const auto list = wanted({{0, 5 << 20, true}});
    file_.truncate(3 << 20);
    const Error error =
        error_of([&] { static_cast<void>(read_file(*rig_.engine(), file_, list)); });
    EXPECT_EQ(error.reason(), ErrorCode::kEndOfFile);
}

TEST_F(FileReaderTest, ProgressStopsIt) {
    put(40 << 20);
    const auto list = wanted({{0, 40 << 20, true}});
    std::uint64_t last = 0;
    static_cast<void>(
        read_file(*rig_.engine(), file_, list, {}, [&](std::uint64_t done, std::uint64_t total) {
            EXPECT_GE(done, last);
            last = done;
            return total == 40 << 20;
        }));
    EXPECT_EQ(last, std::uint64_t{40 << 20});
    const Error error = error_of([&] {
        static_cast<void>(read_file(*rig_.engine(), file_, list, {},
                                    [](std::uint64_t, std::uint64_t) { return false; }));
    });
    EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
}

// Helpers fault the memory in while nobody has anything else to do, which is not the end.
TEST(FileReader, WaitsForMemoryThatIsFaultedInByOthers) {
    const support::TempFolder folder;
    const std::vector<std::byte> data = pattern(6 << 20, 1);
    Engine engine;
    engine.write(folder / "file", data);
    const File file(folder / "file");
    for (int round = 0; round < 100; ++round) {
        void* const fresh = ::mmap(nullptr, data.size(), PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(fresh, MAP_FAILED);
        const std::span<std::byte> into(static_cast<std::byte*>(fresh), data.size());
        const Wanted wanted{.into = into, .sums = {}, .piece_bytes = 0};
        EXPECT_FALSE(read_file(engine, file, {&wanted, 1}, {.fresh = true, .verify = false}));
        const bool same = support::same_bytes(into, data);
        ::munmap(fresh, data.size());
        ASSERT_TRUE(same) << round;
    }
}

}  // namespace
}  // namespace penstock::stream
