// SPDX-License-Identifier: Apache-2.0
// A store that keeps rows in memory gives the same rows as one that does not, whatever the policy,
// the memory, the threads and the hints.
#include "features/gather/memory_tier.hpp"

#include "support/same_bytes.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/features.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace penstock::features {
namespace {

using support::pattern;
using test::error_of;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;
using Ids = std::vector<std::uint64_t>;

constexpr std::uint64_t kRow = 512;
constexpr std::uint64_t kRows = 3000;

class MemoryTierTest : public testing::TestWithParam<RowPolicy> {
protected:
    void SetUp() override {
        FeatureWriter writer(engine_, path_);
        writer.begin_table({"a", "U8", {kRow}});
        writer.append(data_);
        writer.begin_table({"b", "U8", {40}});
        writer.append(small_);
        writer.commit();
    }
    [[nodiscard]] FeatureStore open(std::uint64_t ram_bytes, std::vector<HotRows> hot = {}) const {
        return FeatureStore::open(
            engine_, path_, {.ram_bytes = ram_bytes, .policy = GetParam(), .hot = std::move(hot)});
    }
    static Ids random_ids(std::mt19937_64& random, std::size_t count) {
        Ids ids(count);
        // Some come more often than others.
        std::generate(ids.begin(), ids.end(), [&] {
            return std::min(random() % kRows, std::min(random() % kRows, random() % kRows));
        });
        return ids;
    }
    void expect_right(const Ids& ids, const Bytes& out) const {
        for (std::size_t i = 0; i < ids.size(); ++i) {
            ASSERT_EQ(std::memcmp(&out[i * kRow], &data_[ids[i] * kRow], kRow), 0) << ids[i];
        }
    }
    void gather(const FeatureStore& store, const Ids& ids) const {
        Bytes out(ids.size() * kRow);
        EXPECT_EQ(store.gather(0, ids, out), out.size());
        expect_right(ids, out);
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    const std::string path_ = folder_ / "x.features";
    const Bytes data_ = pattern(kRows * kRow, 1);
    const Bytes small_ = pattern(500 * 40, 2);
};

TEST_P(MemoryTierTest, GathersTheSameRowsInAnyMemory) {
    std::mt19937_64 random(1);
    for (const std::uint64_t ram : {1ULL, 2'000ULL, 60'000ULL, 400'000ULL, 10'000'000ULL}) {
        const FeatureStore store = open(ram);
        EXPECT_LE(store.stats().memory_bytes, ram + 4096);
        std::vector<Ids> batches;
        for (int i = 0; i < 30; ++i) {
            batches.push_back(random_ids(random, random() % 300));
        }
        for (std::size_t i = 0; i < batches.size(); ++i) {
            if (i + 3 < batches.size() && random() % 4 != 0) {
                store.hint(0, batches[i + 3]);  // some hints are missing
            }
            if (random() % 8 == 0) {
                store.hint(0, random_ids(random, 100));  // and some never come true
            }
            gather(store, batches[i]);
        }
        const FeatureStats stats = store.stats();
        EXPECT_EQ(stats.rows, stats.rows_hit + stats.rows_read);
        EXPECT_EQ(stats.bytes_read, stats.rows_read * kRow);
        store.drop_hints();
    }
}

TEST_P(MemoryTierTest, RowsOfASmallFileStay) {
    const std::uint64_t is_small = FeatureStoreOptions::kRamIfSmall;
    const FeatureStore store = open(is_small);
    Ids all(kRows);
    std::iota(all.begin(), all.end(), 0U);
    gather(store, all);
    gather(store, all);
    EXPECT_EQ(store.stats().rows_read, kRows);
    EXPECT_EQ(store.stats().rows_hit, kRows);
    EXPECT_THAT(store.describe(), HasSubstr("rows stay in memory of this process"));
    EXPECT_THAT(open(0).describe(), HasSubstr("no row stays"));
    EXPECT_THAT(open(1 << 20).describe(), HasSubstr("up to 1 MiB"));
    EXPECT_EQ(error_of([&] {
                  static_cast<void>(open(is_small, {{"a", {1}}}));
              }).reason(),
              ErrorCode::kInvalidArgument);
}

// Also those that nobody asks for: each gather reads some of them in order.
TEST_P(MemoryTierTest, AllRowsOfASmallFileComeInTime) {
    const FeatureStore store = open(FeatureStoreOptions::kRamIfSmall);
    std::mt19937_64 random(1);
    for (int i = 0; i < 60; ++i) {
        Ids ids(60);
        std::generate(ids.begin(), ids.end(), [&] { return random() % kRows; });
        gather(store, ids);
    }
    const std::uint64_t read = store.stats().rows_read;
    EXPECT_LT(read, kRows / 4);
    Ids all(kRows);
    std::iota(all.begin(), all.end(), 0U);
    gather(store, all);
    EXPECT_LE(store.stats().rows_read - read, 30U);
    EXPECT_GT(store.stats().preloaded, kRows / 2);
    // Not where rows were asked to stay: those that are read, and no others.
    const FeatureStore asked = open(8 << 20);
    gather(asked, {1, 2, 3});
    EXPECT_EQ(asked.stats().preloaded, 0U);
}

// A sixteenth of what is left.
TEST(MemoryChoice, OfAStoreThatWasOpenedWithTheDefaults) {
    Directory directory;
    directory.tables.resize(2);
    directory.tables[0].rows = 1000;
    directory.tables[0].row_bytes = 100;
    directory.tables[1].rows = 10;
    directory.tables[1].row_bytes = 4;
    const FeatureStoreOptions small{.ram_bytes = FeatureStoreOptions::kRamIfSmall};
    const std::uint64_t all = choose_memory(small, directory, false, UINT64_MAX).bytes;
    EXPECT_GT(all, 1000U * 100 + 10 * 4);
    EXPECT_LT(all, 3U * 1000 * 100);
    EXPECT_EQ(choose_memory(small, directory, false, all * 16).bytes, all);
    EXPECT_EQ(choose_memory(small, directory, false, all * 16 - 1).bytes, 0U);
    EXPECT_THAT(choose_memory(small, directory, false, all).text, HasSubstr("ram='auto'"));
    EXPECT_EQ(choose_memory(small, directory, true, UINT64_MAX).bytes, 0U);
    FeatureStoreOptions gpu = small;
    gpu.device_bytes = 1 << 20;
    EXPECT_EQ(choose_memory(gpu, directory, false, UINT64_MAX).bytes, 0U);
    directory.tables[0].rows = UINT64_MAX / 2;  // more than can be counted
    EXPECT_EQ(choose_memory(small, directory, false, UINT64_MAX).bytes, 0U);
    EXPECT_EQ(choose_memory({.ram_bytes = 5000}, directory, true, 0).bytes, 5000U);
}

TEST_P(MemoryTierTest, ErrorsNameTheCall) {
    const auto message_of = [](const auto& call) -> std::string {
        try {
            call();
        } catch (const Error& error) {
            return error.operation() + ": " + error.what();
        }
        return "no error";
    };
    FeatureStore store = open(8'000'000);
    EXPECT_THAT(message_of([&] { store.hint(0, Ids{kRows}); }),
                testing::AllOf(testing::StartsWith("hint: "), testing::HasSubstr("ids[0]")));
    EXPECT_THAT(message_of([&] { store.hint(7, Ids{1}); }), testing::StartsWith("hint: "));
    EXPECT_THAT(message_of([&] {
                    static_cast<void>(open(8'000'000, {{"a", {1, kRows}}}));
                }),
                testing::AllOf(testing::StartsWith("open features: "),
                               testing::HasSubstr("hot[1]: table 'a' has no row 3000")));
    EXPECT_THAT(message_of([&] {
                    static_cast<void>(open(8'000'000, {{"c", {1}}}));
                }),
                testing::AllOf(testing::StartsWith("open features: "),
                               testing::HasSubstr("hot: there is no table 'c'")));
    EXPECT_THAT(message_of([&] { static_cast<void>(store.table("c")); }),
                testing::StartsWith("table: "));
    store.close();
    EXPECT_THAT(message_of([&] { store.hint(0, Ids{1}); }),
                testing::AllOf(testing::StartsWith("hint: "), testing::HasSubstr("is closed")));
}

TEST_P(MemoryTierTest, HotRowsNeedMemory) {
    EXPECT_NO_THROW(static_cast<void>(open(0, {{"a", {}}})));
    try {
        static_cast<void>(open(0, {{"a", {1}}}));
        ADD_FAILURE() << "opened";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.what(), testing::HasSubstr("hot: there is no memory for these rows"));
    }
}

TEST_P(MemoryTierTest, WhatFitsIsReadOnce) {
    const FeatureStore store = open(8'000'000);
    Ids all(kRows);
    std::iota(all.begin(), all.end(), 0);
    gather(store, all);
    const std::uint64_t read = store.stats().rows_read;
    EXPECT_EQ(read, kRows);
    const std::uint64_t transfers = engine_->submitted();
    gather(store, all);
    EXPECT_EQ(store.stats().rows_read, read);
    EXPECT_EQ(engine_->submitted(), transfers);
}

// So many that they are copied past the caches of the processor, to memory of any alignment.
TEST_P(MemoryTierTest, ManyRowsAtOnceThatAreThere) {
    std::mt19937_64 random(5);
    Ids all(kRows);
    std::iota(all.begin(), all.end(), 0);
    const FeatureStore store =
        open(3'000'000, {{"a", all}, {"b", {all.begin(), all.begin() + 500}}});
    for (const auto& [table, shift] : {std::pair{0U, 0U}, {0U, 1U}, {1U, 24U}}) {
        const std::uint64_t row = table == 0 ? kRow : 40;
        const Bytes& data = table == 0 ? data_ : small_;
        Ids ids((9U << 20) / row);
        std::generate(ids.begin(), ids.end(), [&] { return random() % (data.size() / row); });
        Bytes out(ids.size() * row + shift);
        store.gather(table, ids, std::span(out).subspan(shift));
        for (std::size_t i = 0; i < ids.size(); ++i) {
            ASSERT_EQ(std::memcmp(&out[shift + i * row], &data[ids[i] * row], row), 0) << ids[i];
        }
    }
    EXPECT_GT(store.stats().rows_hit, store.stats().rows / 2);
}

TEST_P(MemoryTierTest, HotRowsAreThereFromTheBeginning) {
    Ids hot(1000);
    std::iota(hot.begin(), hot.end(), 500);
    const FeatureStore store = open(8'000'000, {{"a", hot}, {"b", {3, 3, 499}}});
    EXPECT_EQ(store.stats().preloaded, 1002U);
    gather(store, hot);
    EXPECT_EQ(store.stats().rows_read, 0U);
    EXPECT_THAT(error_of([&] {
                    static_cast<void>(open(1'000'000, {{"c", {1}}}));
                }).what(),
                HasSubstr("no table 'c'"));
    EXPECT_THAT(error_of([&] {
                    static_cast<void>(open(1'000'000, {{"b", {500}}}));
                }).what(),
                HasSubstr("has no row 500"));
    EXPECT_THAT(error_of([&] { store.hint(0, Ids{kRows}); }).what(), HasSubstr("has no row 3000"));
    gather(open(3000, {{"a", hot}}), hot);  // more than fits
}

TEST_P(MemoryTierTest, ThreadsGatherTheSameRows) {
    const FeatureStore store = open(500'000);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937_64 random(t);
            for (int i = 0; i < 40; ++i) {
                const Ids ids = random_ids(random, 200);
                if (i % 3 == 0) {
                    store.hint(0, ids);
                }
                gather(store, ids);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

TEST_P(MemoryTierTest, SeveralUnderWayAndSomeDropped) {
    const FeatureStore store = open(300'000);
    std::mt19937_64 random(5);
    for (int round = 0; round < 20; ++round) {
        std::vector<Ids> ids;
        std::vector<Bytes> out;
        std::vector<FeatureGather> gathers;
        for (int i = 0; i < 4; ++i) {
            ids.push_back(random_ids(random, 100));
            out.emplace_back(ids.back().size() * kRow);
        }
        for (std::size_t i = 0; i < 4; ++i) {
            const FeatureRequest request{0, ids[i], out[i]};
            gathers.push_back(store.gather_async(std::span(&request, 1)));
        }
        gathers[1].cancel();
        gathers.erase(gathers.begin() + 2);  // dropped, and goes on
        gathers[2].wait();
        expect_right(ids[3], out[3]);
        gathers[0].wait();
        expect_right(ids[0], out[0]);
        try {
            gathers[1].wait();
            expect_right(ids[1], out[1]);
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
        }
        engine_->drain();
    }
    for (int i = 0; i < 20; ++i) {
        gather(store, random_ids(random, 300));
    }
}

// The program is wrong, and no other gather gets wrong rows for it.
TEST_P(MemoryTierTest, TwoGathersIntoOneMemoryKeepNothing) {
    const FeatureStore store = open(8'000'000);
    Ids low(200);
    Ids high(200);
    std::iota(low.begin(), low.end(), 0);
    std::iota(high.begin(), high.end(), 1000);
    Bytes out(200 * kRow);
    const FeatureRequest first{0, low, out};
    const FeatureRequest second{0, high, out};
    FeatureGather one = store.gather_async(std::span(&first, 1));
    FeatureGather two = store.gather_async(std::span(&second, 1));
    one.wait();
    two.wait();
    const std::vector<FeatureRequest> both{first, second};
    store.gather(both);
    gather(store, low);
    gather(store, high);
}

#if !defined(__SANITIZE_THREAD__)  // the memory is written to while it is copied: so it is meant

// The second one begins while the first one copies the rows that it keeps.
TEST_P(MemoryTierTest, AGatherIntoMemoryThatIsBeingCopiedLeavesNoWrongRows) {
    constexpr std::uint64_t kRowBytes = 4096;
    constexpr std::uint64_t kCount = 500;
    Directory directory;
    directory.tables.resize(1);
    directory.tables[0].rows = 2 * kCount;
    directory.tables[0].row_bytes = kRowBytes;
    Ids first(kCount);
    Ids second(kCount);
    std::iota(first.begin(), first.end(), 0U);
    std::iota(second.begin(), second.end(), kCount);
    Bytes out(kCount * kRowBytes);
    const auto reading = std::make_shared<char>();
    for (int round = 0; round < 50; ++round) {
        const auto tier = std::make_shared<MemoryTier>(directory, 16 << 20, GetParam());
        std::fill(out.begin(), out.end(), std::byte{1});
        TierGather one(tier, {0, first, out}, reading);
        std::atomic<bool> begins{false};
        std::thread keeps([&] {
            begins = true;
            one.finish(true);
        });
        while (!begins) {
        }
        const TierGather other(tier, {0, second, out}, reading);
        std::fill(out.rbegin(), out.rend(), std::byte{2});  // as its reads do
        keeps.join();
        KeyCache& cache = *tier->of(0).cache;
        for (const std::uint64_t id : first) {
            const auto slot = cache.find(id);
            if (slot && cache.arrival(*slot) == Arrival::kThere) {
                const std::byte* const row = tier->of(0).row(*slot);
                ASSERT_TRUE(support::all_are({row, kRowBytes}, std::byte{1}))
                    << id << " in round " << round;
            }
        }
    }
}

#endif

TEST_P(MemoryTierTest, IdsMayLieInTheMemoryThatTheRowsGoTo) {
    const FeatureStore store = open(8'000'000);
    Ids ids(200);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(3));
    gather(store, Ids(ids.begin(), ids.begin() + 100));
    std::vector<std::uint64_t> memory(ids.size() * kRow / sizeof(std::uint64_t));
    std::copy(ids.begin(), ids.end(), memory.begin());
    const auto bytes = std::as_writable_bytes(std::span(memory));
    store.gather(0, std::span(memory).first(ids.size()), bytes);
    expect_right(ids, Bytes(bytes.begin(), bytes.end()));
    gather(store, ids);
}

TEST_P(MemoryTierTest, AReadThatFailsKeepsNothing) {
    const FeatureStore store = open(8'000'000);
    const auto size = std::filesystem::file_size(path_);
    Ids ids(100);
    std::iota(ids.begin(), ids.end(), 2900);
    gather(store, {0, 1});
    const std::string whole = test::read_text(path_);
    std::filesystem::resize_file(path_, 4096 + 2950 * kRow);
    Bytes out(ids.size() * kRow);
    EXPECT_EQ(error_of([&] { store.gather(0, ids, out); }).reason(), ErrorCode::kEndOfFile);
    gather(store, {0, 1, 2});
    test::write_text(path_, whole);
    ASSERT_EQ(std::filesystem::file_size(path_), size);
    gather(store, ids);
    gather(store, ids);
}

TEST_P(MemoryTierTest, AChildOfForkHasMemoryOfItsOwn) {
    const FeatureStore store = open(500'000);
    Ids ids(300);
    std::iota(ids.begin(), ids.end(), 0);
    gather(store, ids);
    Bytes out(ids.size() * kRow);
    const FeatureRequest request{0, ids, out};
    FeatureGather before = store.gather_async(std::span(&request, 1));
    const pid_t child = ::fork();
    if (child == 0) {
        int wrong = 0;
        try {
            before.wait();
        } catch (const Error& error) {
            wrong += error.reason() == ErrorCode::kCancelled ? 0 : 1;
        }
        const std::uint64_t read = store.stats().rows_read;
        Bytes mine(ids.size() * kRow);
        store.gather(0, ids, mine);
        store.gather(0, ids, mine);
        wrong += std::memcmp(mine.data(), data_.data(), mine.size()) == 0 ? 0 : 2;
        wrong += store.stats().rows_read > read ? 0 : 4;  // its memory was empty
        ::_exit(wrong);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    before.wait();
    expect_right(ids, out);
}

INSTANTIATE_TEST_SUITE_P(Policies, MemoryTierTest,
                         testing::Values(RowPolicy::kStatic, RowPolicy::kClock, RowPolicy::kS3Fifo,
                                         RowPolicy::kWindow),
                         [](const auto& made) { return std::string(name_of(made.param)); });

}  // namespace
}  // namespace penstock::features
