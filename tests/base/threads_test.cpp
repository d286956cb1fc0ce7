// SPDX-License-Identifier: Apache-2.0
// What threads share: the futex, intrusive lists, histograms, random numbers.
#include "base/futex.hpp"
#include "base/histogram.hpp"
#include "base/intrusive.hpp"
#include "base/random.hpp"
#include "support/seccomp.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

namespace penstock::base {
namespace {

TEST(Futex, ReturnsAtOnceWhereTheWordIsAnother) {
    const std::atomic<std::uint32_t> word{2};
    futex_wait(word, 1, 60'000'000'000);
}

TEST(Futex, ReturnsWhenTheTimeIsUp) {
    const std::atomic<std::uint32_t> word{1};
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2)) {
        futex_wait(word, 1, 1'000'000);
    }
}

TEST(Futex, AWakeEndsEveryWait) {
    std::atomic<std::uint32_t> word{0};
    std::atomic<int> awake{0};
    std::vector<std::jthread> sleepers;
    for (int i = 0; i < 4; ++i) {
        sleepers.emplace_back([&] {
            while (word.load() == 0) {
                futex_wait(word, 0, 60'000'000'000);
            }
            ++awake;
        });
    }
    word.store(1);
    futex_wake_all(word);
    sleepers.clear();
    EXPECT_EQ(awake.load(), 4);
}

struct Linked {
    Link<Linked> link;
    int value = 0;
};

TEST(Fifo, FirstInFirstOut) {
    std::vector<Linked> items(5);
    Fifo<Linked> fifo;
    EXPECT_TRUE(fifo.empty());
    EXPECT_EQ(fifo.pop_front(), nullptr);
    for (int i = 0; i < 4; ++i) {
        items[static_cast<std::size_t>(i)].value = i;
        fifo.push_back(items[static_cast<std::size_t>(i)]);
    }
    items[4].value = -1;
    fifo.push_front(items[4]);
    Fifo<Linked> other;
    other.take(fifo);
    EXPECT_TRUE(fifo.empty());
    for (int i = -1; i < 4; ++i) {
        ASSERT_NE(other.front(), nullptr);
        EXPECT_EQ(other.pop_front()->value, i);
    }
    EXPECT_TRUE(other.empty());
    other.push_back(items[0]);  // after it was empty
    EXPECT_EQ(other.pop_front(), items.data());
}

TEST(Inbox, AllOfEveryProducerAndEachInItsOrder) {
    constexpr std::size_t kProducers = 3;
    constexpr std::size_t kEach = 2000;
    std::vector<std::vector<Linked>> items(kProducers, std::vector<Linked>(kEach));
    Inbox<Linked> inbox;
    std::vector<std::jthread> producers;
    for (std::size_t p = 0; p < kProducers; ++p) {
        producers.emplace_back([&, p] {
            for (std::size_t i = 0; i < kEach; ++i) {
                items[p][i].value = static_cast<int>(p * kEach + i);
                inbox.put(items[p][i]);
            }
        });
    }
    std::vector<std::size_t> seen(kProducers, 0);
    for (std::size_t taken = 0; taken < kProducers * kEach;) {
        auto some = inbox.take_all();
        while (const Linked* item = some.pop_front()) {
            const auto value = static_cast<std::size_t>(item->value);
            EXPECT_EQ(value % kEach, seen[value / kEach]++);
            ++taken;
        }
    }
    EXPECT_TRUE(inbox.empty());
}

TEST(Histogram, ABucketHoldsItsLatenciesToWithin12Percent) {
    std::size_t last = 0;
    for (Nanos latency = 8; latency < Nanos{1} << 44; latency += latency / 20 + 1) {
        const std::size_t index = Histogram::bucket(latency);
        EXPECT_GE(index, last);
        last = index;
        const Nanos most = Histogram::upper_bound(index);
        EXPECT_GE(most, latency);
        EXPECT_LE(static_cast<double>(most), static_cast<double>(latency) * 1.126);
        EXPECT_EQ(Histogram::bucket(most), index);
        EXPECT_EQ(Histogram::bucket(most + 1), index + 1);
    }
    EXPECT_EQ(Histogram::bucket(-5), 0U);
    EXPECT_EQ(Histogram::bucket(0), 0U);
    EXPECT_EQ(Histogram::bucket(std::numeric_limits<Nanos>::max()), Histogram::kBuckets - 1);
}

TEST(Histogram, CountsWhatIsAdded) {
    Histogram histogram;
    histogram.add(1000);
    histogram.add(1000);
    histogram.add(2'000'000);
    EXPECT_EQ(histogram.count(Histogram::bucket(1000)), 2U);
    EXPECT_EQ(histogram.count(Histogram::bucket(2'000'000)), 1U);
    EXPECT_EQ(histogram.count(0), 0U);
}

TEST(Random, ASeedReplaysAndEndsWithItsScope) {
    std::uint64_t first = 0;
    {
        const SeededRandom seeded(1);
        first = random_bits();
        EXPECT_NE(first, random_bits());
        {
            const SeededRandom inner(1);
            EXPECT_EQ(random_bits(), first);
        }
        std::uint64_t of_another_thread = first;
        std::thread([&] { of_another_thread = random_bits(); }).join();
        EXPECT_NE(of_another_thread, first);
    }
    EXPECT_NE(random_bits(), first);
    const SeededRandom again(1);
    EXPECT_EQ(random_bits(), first);
}

TEST(Random, OfTheDeviceWhereTheCallIsRefused) {
    EXPECT_EQ(test::in_child([]() -> std::string {
                  if (!test::refuse_system_call(SYS_getrandom, EPERM)) {
                      return "no seccomp";
                  }
                  return random_bits() != random_bits() ? "" : "twice the same";
              }),
              "");
}

}  // namespace
}  // namespace penstock::base
