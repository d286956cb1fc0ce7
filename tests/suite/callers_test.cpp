// SPDX-License-Identifier: Apache-2.0
// Many threads that read a little each and wait for it: each is served on its own thread, however
// many they are.
#include "suite/suite.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace penstock::suite {
namespace {

constexpr std::size_t kThreads = 32;
constexpr std::size_t kBlock = 4096;

class Callers : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, Callers, every_kind(), kind_name);

TEST_P(Callers, AreServedOnTheirOwnThreads) {
    FakeSetup setup;
    setup.inline_too = true;
    use({}, setup);
    constexpr std::size_t kReads = 60;
    const std::vector<std::byte> data = pattern(256 * kBlock, 4);
    const File file = with_bytes("data", data);
    const EngineStats before = engine().stats();
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
            std::mt19937_64 random(thread);
            std::vector<std::byte> back(kBlock + 1);
            for (std::size_t i = 0; i < kReads; ++i) {
                const std::size_t offset = random() % (data.size() - kBlock);
                std::byte* const into = back.data() + i % 2;
                engine().run(request_of(false, file, into, kBlock, offset))->wait();
                wrong += std::equal(into, into + kBlock, data.data() + offset) ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
    const EngineStats after = engine().stats();
    if (!fake() && GetParam() != EngineKind::kAuto) {
        return;  // nothing of theirs is on the caller's thread
    }
    EXPECT_EQ(after.inline_requests - before.inline_requests, after.requests - before.requests);
    EXPECT_GE(after.requests - before.requests, kThreads * kReads);
}

// None waits for another: all are at the device at once.
TEST(CallersOfASlowDevice, AreThereAllAtOnce) {
    FakeSetup setup;
    setup.inline_too = true;
    const auto engine = TestEngine::make(EngineKind::kFake, {}, setup);
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t at_device = 0;
    bool armed = false;
    engine->disk().set_watch([&](const simulation::DiskOperation& operation) {
        std::unique_lock lock(mutex);
        if (armed && operation.call == simulation::DiskCall::kAccess) {
            ++at_device;
            changed.notify_all();
            changed.wait_for(lock, std::chrono::seconds(20), [&] { return at_device >= kThreads; });
        }
    });
    File file = engine->files().open("/data", {.access = Access::kReadWrite, .create = true});
    put_bytes(file, 0, pattern(kThreads * kBlock, 4));
    {
        const std::lock_guard lock(mutex);
        armed = true;
    }
    std::vector<std::byte> back(kThreads * kBlock);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            engine->run(request_of(false, file, back.data() + i * kBlock, kBlock, i * kBlock))
                ->wait();
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(back, pattern(kThreads * kBlock, 4));
    EXPECT_EQ(engine->stats().inline_requests, kThreads);
}

}  // namespace
}  // namespace penstock::suite
