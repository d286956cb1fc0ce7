// SPDX-License-Identifier: Apache-2.0
#include "store/background/save_queue.hpp"

#include "store/background/staging.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

namespace penstock::store {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using SaveState = PendingSave::State;

// Work that stands still until it is released.
struct Gate {
    std::atomic<bool> open{false};
    void wait() const {
        while (!open) {
            std::this_thread::sleep_for(1ms);
        }
    }
};

std::string message_of(const std::exception_ptr& failure) {
    if (failure == nullptr) {
        return "none";
    }
    try {
        std::rethrow_exception(failure);
    } catch (const std::exception& e) {
        return e.what();
    }
}

TEST(SaveQueue, SavesGoInTheirOrder) {
    std::vector<int> order;
    std::vector<std::shared_ptr<PendingSave>> saves;
    SaveQueue queue;
    for (int i = 0; i < 100; ++i) {
        saves.push_back(
            queue.add([&order, i](PendingSave&) { order.push_back(i); }, std::to_string(i), true));
    }
    ASSERT_TRUE(queue.wait_idle(20s));
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
        EXPECT_EQ(saves[static_cast<std::size_t>(i)]->state(), SaveState::kDurable);
    }
}

TEST(SaveQueue, StatesFromQueuedToDurable) {
    SaveQueue queue;
    Gate gate;
    const auto copied = queue.add([&](PendingSave&) { gate.wait(); }, "copied", true);
    const auto straight = queue.add([](PendingSave&) {}, "straight", false);
    EXPECT_EQ(copied->state(), SaveState::kStaged);
    EXPECT_TRUE(copied->wait_staged(0ns));
    EXPECT_EQ(straight->state(), SaveState::kQueued);
    EXPECT_FALSE(straight->staged());
    EXPECT_FALSE(straight->wait_staged(5ms));
    EXPECT_FALSE(copied->wait_done(5ms));
    EXPECT_EQ(queue.in_flight(), 2U);
    EXPECT_FALSE(queue.wait_idle(1ms));
    gate.open = true;
    EXPECT_TRUE(straight->wait_staged(20s));
    EXPECT_TRUE(copied->wait_done(20s));
    EXPECT_EQ(copied->state(), SaveState::kDurable);
    EXPECT_TRUE(straight->wait_done(20s));
    EXPECT_TRUE(queue.wait_idle(20s));
    EXPECT_EQ(queue.in_flight(), 0U);
    EXPECT_EQ(copied->failure(), nullptr);
}

TEST(SaveQueue, AFailureIsKeptUntilItIsToldOnceAndTheNextSaveGoesOn) {
    SaveQueue queue;
    const auto bad =
        queue.add([](PendingSave&) { throw std::runtime_error("disk full"); }, "step 1", true);
    const auto good = queue.add([](PendingSave&) {}, "step 2", true);
    ASSERT_TRUE(good->wait_done(20s));
    EXPECT_EQ(good->state(), SaveState::kDurable);
    EXPECT_EQ(bad->state(), SaveState::kFailed);
    const auto told = queue.take_failure();
    ASSERT_EQ(told, bad);
    EXPECT_EQ(message_of(told->failure()), "disk full");
    EXPECT_EQ(queue.take_failure(), nullptr);
}

TEST(SaveQueue, WhoHearsThatItFailedFindsItInTheList) {
    SaveQueue queue;
    for (int i = 0; i < 200; ++i) {
        const auto bad = queue.add([](PendingSave&) { throw std::runtime_error("no"); }, "", true);
        ASSERT_TRUE(bad->wait_done(20s));
        ASSERT_EQ(queue.take_failure(), bad);
    }
}

TEST(SaveQueue, AFailureThatWasAskedForIsNotToldAgain) {
    SaveQueue queue;
    const auto bad = queue.add([](PendingSave&) { throw std::runtime_error("no"); }, "", true);
    ASSERT_TRUE(bad->wait_done(20s));
    EXPECT_EQ(message_of(bad->failure()), "no");
    EXPECT_EQ(queue.take_failure(), nullptr);
}

TEST(SaveQueue, CancelStopsTheRunningOneAndSkipsThoseThatWait) {
    SaveQueue queue;
    std::atomic<bool> began{false};
    const auto running = queue.add(
        [&](PendingSave& save) {
            const Progress progress = save.progress();
            began = true;
            while (progress(1, 2)) {
                std::this_thread::sleep_for(1ms);
            }
            throw Error(ErrorCode::kCancelled, 0, "save", "", kNoOffset, "stopped");
        },
        "a", true);
    std::atomic<bool> ran{false};
    const auto waiting = queue.add([&](PendingSave&) { ran = true; }, "b", true);
    while (!began) {
        std::this_thread::sleep_for(1ms);
    }
    queue.cancel_all();
    ASSERT_TRUE(waiting->wait_done(20s));
    EXPECT_EQ(running->state(), SaveState::kFailed);
    EXPECT_EQ(running->done_bytes(), 1U);
    EXPECT_EQ(running->total_bytes(), 2U);
    EXPECT_FALSE(ran);
    EXPECT_THAT(message_of(waiting->failure()), HasSubstr("cancelled"));
    EXPECT_EQ(queue.take_failure(), nullptr) << "who cancels knows";
}

TEST(SaveQueue, ItsEndFinishesWhatIsInIt) {
    std::atomic<int> done{0};
    std::vector<std::shared_ptr<PendingSave>> saves;
    {
        SaveQueue queue;
        for (int i = 0; i < 5; ++i) {
            saves.push_back(queue.add(
                [&](PendingSave&) {
                    std::this_thread::sleep_for(2ms);
                    ++done;
                },
                "", true));
        }
    }
    EXPECT_EQ(done, 5);
    EXPECT_EQ(saves.back()->state(), SaveState::kDurable);
}

TEST(SaveQueue, ManyThreadsAddWaitAndAsk) {
    SaveQueue queue;
    std::atomic<int> ran{0};
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                for (int i = 0; i < 50; ++i) {
                    const auto save = queue.add(
                        [&](PendingSave&) {
                            ++ran;
                            if (ran % 7 == 0) {
                                throw std::runtime_error("seventh");
                            }
                        },
                        "", i % 2 == 0);
                    if ((i + t) % 3 == 0) {
                        EXPECT_TRUE(save->wait_done(20s));
                        static_cast<void>(message_of(save->failure()));
                    }
                    static_cast<void>(queue.take_failure());
                }
            });
        }
    }
    EXPECT_TRUE(queue.wait_idle(20s));
    EXPECT_EQ(ran, 200);
}

// Uses both as save_async() does: 200 saves in a budget of two, never more memory than that.
TEST(SaveQueue, SavesWithCopiesStayInTheBudget) {
    constexpr std::uint64_t kMiB = 1 << 20;
    Staging staging({.budget_bytes = 4 * kMiB, .threads = 2});
    std::vector<std::byte> tensor(2 * kMiB);
    std::atomic<int> wrong{0};
    SaveQueue queue;
    for (int i = 0; i < 200; ++i) {
        std::memset(tensor.data(), i, tensor.size());
        const ConstMemory piece(tensor);
        auto copy = staging.copy({&piece, 1}, 20s);
        ASSERT_TRUE(copy);
        ASSERT_LE(staging.used_bytes() + staging.kept_bytes(), 4 * kMiB);
        queue.add(
            [&wrong, i, own = std::make_shared<StagedCopy>(std::move(*copy))](PendingSave&) {
                const auto bytes = own->pieces()[0];
                wrong += bytes.front() != static_cast<std::byte>(i);
                wrong += bytes[bytes.size() / 2] != static_cast<std::byte>(i);
            },
            "", true);
    }
    ASSERT_TRUE(queue.wait_idle(20s));
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(staging.used_bytes(), 0U);
}

TEST(SaveQueue, InTheChildOfAForkSavesAreTheParents) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer starts no threads after a fork";
#endif
    SaveQueue queue;
    Gate gate;
    const auto save = queue.add([&](PendingSave&) { gate.wait(); }, "step 3", true);
    const pid_t child = ::fork();
    if (child == 0) {
        // Not a wait forever, and an error that says why; and a queue that works.
        bool fine = save->wait_done(5s) && save->state() == SaveState::kFailed &&
                    message_of(save->failure()).find("belongs to the process") != std::string::npos;
        const auto own = queue.add([](PendingSave&) {}, "mine", true);
        fine = fine && own->wait_done(20s) && own->state() == SaveState::kDurable;
        ::_exit(fine ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    gate.open = true;
    EXPECT_TRUE(save->wait_done(20s));
    EXPECT_EQ(save->state(), SaveState::kDurable);
}

}  // namespace
}  // namespace penstock::store
