// SPDX-License-Identifier: Apache-2.0
// A process forks while its other threads hold each mutex that a child may come across: of a pool
// of memory, of the copies and the queue of saves in the background, of a store that saves. No
// child waits for a thread that it does not have.
#include "memory/fresh_memory.hpp"
#include "store/background/background_saver.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/penstock.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;

constexpr int kForks = 60;
constexpr unsigned kChildSeconds = 20;

class ForkMutexes : public ::testing::Test {
protected:
    void SetUp() override {
#ifdef __SANITIZE_THREAD__
        GTEST_SKIP() << "ThreadSanitizer starts no threads after a fork";
#endif
#ifdef __SANITIZE_ADDRESS__
        GTEST_SKIP() << "AddressSanitizer's own allocator leaves its mutexes locked in a child";
#endif
    }

    // Forks again and again while two threads call `work`; each child does `childs`, and says
    // whether that was right.
    void hammer(const std::function<void()>& work, const std::function<bool()>& childs) {
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < 2; ++i) {
            threads.emplace_back([&] {
                while (!stop) {
                    work();
                }
            });
        }
        for (int i = 0; i < kForks && !HasFailure(); ++i) {
            const pid_t child = ::fork();
            if (child == 0) {
                ::alarm(kChildSeconds);
                ::_exit(childs() ? 0 : 1);
            }
            int status = 0;
            EXPECT_EQ(::waitpid(child, &status, 0), child);
            EXPECT_EQ(status, 0) << "of child " << i << "; 14: it waited for ever";
        }
        stop = true;
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

    support::TempFolder folder_{"/dev/shm"};
};

TEST_F(ForkMutexes, OfAPoolOfMemory) {
    MemoryPool pool;
    const Buffer held = pool.take(4096);
    hammer([&] { const Buffer taken = pool.take(4096); },
           [&] {
               Buffer own = pool.take(4096);
               own.data()[0] = std::byte{1};
               own = {};
               pool.trim();
               return pool.kept_bytes() == 0;
           });
}

TEST_F(ForkMutexes, OfMemoryOfLoads) {
    using memory::FreshMemory;
    const std::vector<memory::Stretch> stretches{{0, 2 << 20}, {4 << 20, 2 << 20}};
    const auto part = [&] { return FreshMemory::make(stretches).value().place(0); };
    FreshMemory::SharePlace held = part();
    hammer([&] { const FreshMemory::SharePlace taken = part(); },
           [&] {
               held = part();
               held = {};
               return part().part != nullptr;
           });
}

TEST_F(ForkMutexes, OfCopiesInTheBackground) {
    store::Staging staging({.budget_bytes = std::uint64_t{32} << 20, .threads = 2});
    const auto data = support::pattern(100'000, 1);
    const std::vector<ConstMemory> pieces{data};
    std::optional<store::StagedCopy> parents = staging.copy(pieces, 1s);
    hammer([&] { const auto copy = staging.copy(pieces, 1s); },
           [&] {
               parents.reset();
               return staging.used_bytes() == 0 && staging.copy(pieces, 1s).has_value();
           });
}

TEST_F(ForkMutexes, OfTheQueueOfSaves) {
    store::BackgroundSaver saver(std::uint64_t{4} << 20);
    const auto save = [&] {
        return saver.add([](store::PendingSave&) {}, "it", true, std::make_shared<int>());
    };
    hammer(
        [&] {
            saver.sweep();
            static_cast<void>(save()->wait_done(1s));
        },
        [&] {
            saver.raise_failure("another");
            return save()->wait_done(10s) && saver.queue()->wait_idle(10s);
        });
}

TEST_F(ForkMutexes, OfAStore) {
    const auto engine = std::make_shared<Engine>();
    const auto data = support::pattern(1000, 1);
    State state;
    state.tensors.push_back({"t", "U8", {data.size()}, data});
    const auto store = [&](const std::string& name, std::uint32_t keep) {
        return CheckpointStore(engine, FileSystem::local(), {folder_.path() + "/" + name},
                               {.keep = keep});
    };
    CheckpointStore parents = store("parents", 2);
    const auto refuses = [](const std::function<void()>& call) {
        try {
            call();
        } catch (const Error& error) {
            return error.reason() == ErrorCode::kInvalidArgument;
        }
        return false;
    };
    parents.save(state);
    hammer([&] { parents.save(state); },
           [&] {
               return refuses([&] { parents.save(state); }) &&
                      refuses([&] { parents.save_async(state); }) &&
                      refuses([&] { parents.remove(1); }) && refuses([&] { parents.collect(); }) &&
                      store("childs", 1).save(state).problem.empty();
           });
}

}  // namespace
}  // namespace penstock
