// SPDX-License-Identifier: Apache-2.0
#include "store/background/staging.hpp"

#include "base/align.hpp"
#include "stream/copy_threads.hpp"

#include <penstock/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace penstock::store {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

using Memory = std::vector<std::byte>;

Memory random_bytes(std::size_t size, std::mt19937::result_type seed) {
    std::mt19937 random(seed);
    Memory out(size);
    for (std::size_t at = 0; at < size; at += 4) {
        const auto word = static_cast<std::uint32_t>(random());
        std::memcpy(out.data() + at, &word, std::min<std::size_t>(4, size - at));
    }
    return out;
}

std::vector<ConstMemory> spans_of(const std::vector<Memory>& tensors) {
    return {tensors.begin(), tensors.end()};
}

void expect_same(const StagedCopy& copy, const std::vector<Memory>& tensors) {
    ASSERT_EQ(copy.pieces().size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_EQ(copy.pieces()[i].size(), tensors[i].size());
        EXPECT_TRUE(std::equal(tensors[i].begin(), tensors[i].end(), copy.pieces()[i].begin()))
            << "piece " << i;
    }
}

TEST(CopyThreads, EachUnitIsDoneOnce) {
    stream::CopyThreads threads(4);
    for (const std::size_t count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> seen(count);
        threads.run(count, [&](std::size_t i) { ++seen[i]; });
        for (const auto& s : seen) {
            EXPECT_EQ(s, 1);
        }
    }
}

TEST(CopyThreads, SeveralCallersWaitForOneAnother) {
    stream::CopyThreads threads(3);
    std::vector<std::jthread> callers;
    std::atomic<int> total{0};
    for (int c = 0; c < 4; ++c) {
        callers.emplace_back([&] {
            for (int round = 0; round < 50; ++round) {
                int own[16] = {};
                threads.run(16, [&](std::size_t i) { own[i] = 1; });
                for (const int o : own) {
                    total += o;
                }
            }
        });
    }
    callers.clear();
    EXPECT_EQ(total, 4 * 50 * 16);
}

TEST(CopyThreads, StreamingCopyIsACopyAtEveryOffset) {
    const Memory source = random_bytes(600, 1);
    for (std::size_t to = 0; to < 70; ++to) {
        for (const std::size_t size : {0, 1, 63, 64, 65, 200, 500}) {
            Memory target(700, std::byte{0xEE});
            stream::copy_streaming(target.data() + to, source.data() + to, size);
            EXPECT_EQ(std::memcmp(target.data() + to, source.data() + to, size), 0);
            EXPECT_EQ(target[to + size], std::byte{0xEE});
            EXPECT_TRUE(to == 0 || target[to - 1] == std::byte{0xEE});
        }
    }
}

TEST(Staging, AnyPiecesCopiedAsTheyWere) {
    std::mt19937 random(3);
    Staging staging({.budget_bytes = 64 * base::kMiB, .threads = 3});
    for (int round = 0; round < 20; ++round) {
        std::vector<Memory> tensors;
        const auto count = random() % 40;
        for (unsigned i = 0; i < count; ++i) {
            // Empty ones, small ones, and some that several threads share.
            const unsigned kind = random() % 8;
            const std::size_t size = kind == 0   ? 0
                                     : kind == 7 ? random() % (3 * base::kMiB)
                                                 : random() % 5000;
            tensors.push_back(random_bytes(size, random()));
        }
        const auto copy = staging.copy(spans_of(tensors), 10s);
        ASSERT_TRUE(copy);
        expect_same(*copy, tensors);
    }
}

TEST(Staging, TheCopyIsThatOfTheCall) {
    Staging staging({.budget_bytes = 64 * base::kMiB, .threads = 2});
    std::vector<Memory> tensors{random_bytes(9 * base::kMiB, 1), random_bytes(100, 2)};
    const std::vector<Memory> before = tensors;
    const auto copy = staging.copy(spans_of(tensors), 1s);
    ASSERT_TRUE(copy);
    for (Memory& t : tensors) {
        std::fill(t.begin(), t.end(), std::byte{0});
    }
    expect_same(*copy, before);
}

TEST(Staging, LargePiecesBeginOnPages) {
    Staging staging({.budget_bytes = 64 * base::kMiB});
    const std::vector<Memory> tensors{Memory(100), Memory(64 << 10), Memory(7), Memory(1 << 20)};
    const auto copy = staging.copy(spans_of(tensors), 1s);
    ASSERT_TRUE(copy);
    EXPECT_TRUE(base::is_aligned(copy->pieces()[1].data(), 4096));
    EXPECT_TRUE(base::is_aligned(copy->pieces()[3].data(), 4096));
    EXPECT_TRUE(base::is_aligned(copy->pieces()[2].data(), 64));
}

TEST(Staging, TheMemoryIsKeptAndTakenAgain) {
    Staging staging({.budget_bytes = 32 * base::kMiB, .threads = 2});
    const std::vector<Memory> tensors{Memory(6 * base::kMiB)};
    const std::byte* first = nullptr;
    for (int round = 0; round < 10; ++round) {
        const auto copy = staging.copy(spans_of(tensors), 1s);
        ASSERT_TRUE(copy);
        first = first == nullptr ? copy->pieces()[0].data() : first;
        EXPECT_EQ(copy->pieces()[0].data(), first);
        EXPECT_EQ(staging.used_bytes(), 6 * base::kMiB);
        EXPECT_EQ(staging.kept_bytes(), 0U);
    }
    EXPECT_EQ(staging.used_bytes(), 0U);
    EXPECT_EQ(staging.kept_bytes(), 6 * base::kMiB);
}

TEST(Staging, UsedAndKeptStayWithinTheBudget) {
    std::mt19937 random(5);
    Staging staging({.budget_bytes = 24 * base::kMiB, .threads = 2});
    std::vector<StagedCopy> held;
    const Memory memory(12 * base::kMiB);
    for (int round = 0; round < 200; ++round) {
        const ConstMemory piece(memory.data(), random() % memory.size());
        if (auto copy = staging.copy({&piece, 1}, 0ns)) {
            held.push_back(std::move(*copy));
        }
        if (!held.empty() && (held.size() > 4 || random() % 2 == 0)) {
            held.erase(held.begin() + random() % held.size());
        }
        ASSERT_LE(staging.used_bytes() + staging.kept_bytes(), 24 * base::kMiB);
    }
    held.clear();
    EXPECT_EQ(staging.used_bytes(), 0U);
}

TEST(Staging, WhoFindsTheBudgetUsedUpWaits) {
    Staging staging({.budget_bytes = 10 * base::kMiB});
    const std::vector<Memory> tensors{Memory(6 * base::kMiB)};
    auto first = staging.copy(spans_of(tensors), 1s);
    ASSERT_TRUE(first);
    EXPECT_FALSE(staging.copy(spans_of(tensors), 20ms));
    std::jthread later([&] {
        std::this_thread::sleep_for(30ms);
        first.reset();
    });
    EXPECT_TRUE(staging.copy(spans_of(tensors), 20s));
}

TEST(Staging, AStateLargerThanTheBudgetIsRefusedWithBothSizes) {
    Staging staging({.budget_bytes = 4 * base::kMiB});
    const std::vector<Memory> tensors{Memory(5 * base::kMiB)};
    try {
        static_cast<void>(staging.copy(spans_of(tensors), 1s));
        FAIL() << "it was taken";
    } catch (const Error& e) {
        EXPECT_EQ(e.reason(), ErrorCode::kOutOfMemory);
        EXPECT_THAT(e.what(), HasSubstr("6 MiB"));
        EXPECT_THAT(e.what(), HasSubstr("host_memory is 4 MiB"));
    }
    EXPECT_EQ(staging.used_bytes(), 0U);
}

TEST(Staging, TheDefaultBudgetIsAPartOfTheMachine) {
    const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * 4096;
    EXPECT_GT(Staging::default_budget_bytes(), 64 * base::kMiB);
    EXPECT_LE(Staging::default_budget_bytes(), machine / 2);
}

TEST(Staging, TheChildOfAForkBeginsEmpty) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer starts no threads after a fork";
#endif
    Staging staging({.budget_bytes = 16 * base::kMiB, .threads = 2});
    const std::vector<Memory> tensors{random_bytes(9 * base::kMiB, 8)};
    auto held = staging.copy(spans_of(tensors), 1s);
    ASSERT_TRUE(held);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool empty = staging.used_bytes() == 0;
        const auto copy = staging.copy(spans_of(tensors), 1s);
        const bool same =
            copy && std::equal(tensors[0].begin(), tensors[0].end(), copy->pieces()[0].begin());
        held.reset();
        ::_exit(empty && same ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    expect_same(*held, tensors);
}

}  // namespace
}  // namespace penstock::store
