// SPDX-License-Identifier: Apache-2.0
// fork() under traffic: what the parent has in flight completes right; in the child it ends as
// cancelled, and the engine works again.
#include "suite/suite.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

namespace penstock::suite {
namespace {

class Fork : public ::testing::TestWithParam<EngineKind> {
protected:
    void SetUp() override {
#ifdef PENSTOCK_TSAN
        GTEST_SKIP() << "ThreadSanitizer has no threads in the child of a fork with threads";
#endif
        EngineOptions options;
        options.backend = kinds().at(GetParam());
        options.block_bytes = 65536;
        options.queue_depth = 8;
        const auto refused = error_of([&] {
            engine_ = std::make_unique<Engine>(options);
            return 0;
        });
        if (refused) {
            GTEST_SKIP() << refused->what();
        }
        path_ = scratch_folder() + "/fork";
        data_ = pattern(4 << 20, 1);
        file_ = File(path_, {.access = Access::kReadWrite, .create = true});
        engine_->write(file_, data_);
    }
    void TearDown() override {
        engine_.reset();
        if (!path_.empty()) {
            std::filesystem::remove(path_);
        }
    }

    static const std::map<EngineKind, BackendKind>& kinds() {
        static const std::map<EngineKind, BackendKind> map{
            {EngineKind::kUring, BackendKind::kUring},
            {EngineKind::kAio, BackendKind::kAio},
            {EngineKind::kPosix, BackendKind::kPosix},
            {EngineKind::kAuto, BackendKind::kAuto}};
        return map;
    }

    // The work of the child; returns the number of the failed check. No assertions: it is not
    // gtest's process.
    int child(std::vector<Transfer>& inherited) {
        ::alarm(60);
        for (Transfer& transfer : inherited) {
            const bool was_done = transfer.status() == TransferStatus::kDone;
            const auto error = error_of([&] { return transfer.wait(); });
            if (was_done ? error.has_value() : !error || error->reason() != ErrorCode::kCancelled) {
                return 1;
            }
        }
        std::vector<std::byte> back(data_.size());
        engine_->read(file_, back);
        if (back != data_) {
            return 2;
        }
        Transfer transfer = engine_->read_async(file_, std::span(back).subspan(1), 1);
        if (transfer.wait() != back.size() - 1 || !engine_->drain()) {
            return 3;
        }
        inherited.clear();
        engine_->write(path_ + "-child", data_);
        std::filesystem::remove(path_ + "-child");
        // A grandchild too.
        const pid_t again = ::fork();
        if (again == 0) {
            engine_->read(file_, std::span(back).first(100'000));
            ::_exit(std::equal(back.begin(), back.begin() + 100'000, data_.begin()) ? 0 : 1);
        }
        int status = 0;
        if (::waitpid(again, &status, 0) != again || status != 0) {
            return 4;
        }
        engine_.reset();  // does not wait for the parent's
        return 0;
    }

    std::unique_ptr<Engine> engine_;
    std::string path_;
    std::vector<std::byte> data_;
    File file_;
};
INSTANTIATE_TEST_SUITE_P(Backends, Fork, kernel_kinds(), kind_name);

TEST_P(Fork, UnderTraffic) {
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> traffic;
    for (std::size_t t = 0; t < 2; ++t) {
        traffic.emplace_back([&, t] {
            std::vector<std::byte> back(300'001);
            while (!stop.load()) {
                const std::uint64_t offset = 1000 * t;
                engine_->read(file_, back, offset);
                wrong += std::equal(back.begin(), back.end(),
                                    data_.begin() + static_cast<std::ptrdiff_t>(offset))
                             ? 0
                             : 1;
                engine_->read(file_, std::span(back).first(4096), 8192);  // inline where that is on
                engine_->write(path_ + std::to_string(t), std::span(back).first(10'001), 5);
            }
        });
    }
    for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<std::byte>> memory(8, std::vector<std::byte>(data_.size() / 2));
        std::vector<Transfer> transfers;
        for (std::size_t i = 0; i < memory.size(); ++i) {
            transfers.push_back(engine_->read_async(file_, memory[i], i * 1001));
        }
        const pid_t pid = ::fork();
        ASSERT_GE(pid, 0);
        if (pid == 0) {
            ::_exit(child(transfers));
        }
        for (std::size_t i = 0; i < memory.size(); ++i) {
            EXPECT_EQ(transfers[i].wait(), memory[i].size());
            EXPECT_TRUE(std::equal(memory[i].begin(), memory[i].end(),
                                   data_.begin() + static_cast<std::ptrdiff_t>(i * 1001)));
        }
        int status = 0;
        ASSERT_EQ(::waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
        EXPECT_EQ(WEXITSTATUS(status), 0);
    }
    stop = true;
    for (std::thread& thread : traffic) {
        thread.join();
    }
    EXPECT_EQ(wrong.load(), 0);
    std::filesystem::remove(path_ + "0");
    std::filesystem::remove(path_ + "1");
}

// A transfer that failed before the fork and that the child drops: its error goes nowhere, and
// nobody waits for a lock that the parent held.
TEST_P(Fork, ChildDropsWhatFailedBefore) {
    std::vector<std::byte> back(100);
    std::vector<Transfer> failed;
    failed.push_back(engine_->read_async(file_, back, data_.size()));
    while (!failed[0].done()) {
        std::this_thread::yield();
    }
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::alarm(60);
        failed.clear();
        engine_.reset();
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    failed.clear();
    EXPECT_TRUE(error_of([&] { return engine_->drain(); }));
}

// Threads that are called so, in this process.
int count_threads(const std::string& name) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream comm(entry.path() / "comm");
        std::string called;
        comm >> called;
        count += called == name ? 1 : 0;
    }
    return count;
}

// A thread that was just made is called as the one that made it for a moment.
bool come_down_to(int expected, const std::string& name) {
    for (int tries = 0; tries < 200 && count_threads(name) != expected; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return count_threads(name) == expected;
}

// Whichever thread of the child comes first, there is one engine, and drain() knows of everything.
TEST_P(Fork, ThreadsOfTheChildGetOneEngine) {
    constexpr std::size_t kCallers = 8;
    const auto work = [&] {
        ::alarm(60);
        std::atomic<std::size_t> ready{0};
        std::vector<Transfer> transfers(kCallers);
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < kCallers; ++i) {
            threads.emplace_back([&, i] {
                ready.fetch_add(1);
                while (ready.load() < kCallers) {
                }
                transfers[i] = engine_->write_async(path_ + std::to_string(i), data_);
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        engine_->drain();
        const bool all = std::all_of(transfers.begin(), transfers.end(),
                                     [](const Transfer& t) { return t.done(); });
        return all && come_down_to(1, "penstock-io") ? 0 : 1;
    };
    for (int round = 0; round < 4; ++round) {
        const pid_t pid = ::fork();
        if (pid == 0) {
            ::_exit(work());
        }
        int status = 0;
        ASSERT_EQ(::waitpid(pid, &status, 0), pid);
        ASSERT_EQ(status, 0) << round;
    }
    for (std::size_t i = 0; i < kCallers; ++i) {
        std::filesystem::remove(path_ + std::to_string(i));
    }
}

// Nobody makes an engine from scratch just to ask what it does, or to close it.
TEST_P(Fork, AskingInTheChildMakesNothing) {
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::alarm(60);
        const bool nothing = engine_->running() == 0 && engine_->submitted() == 0 &&
                             engine_->drain() && engine_->close() &&
                             count_threads("penstock-io") == 0;
        const auto error = error_of([&] { return engine_->read(file_, data_); });
        engine_.reset();
        ::_exit(nothing && error && error->reason() == ErrorCode::kClosed ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(engine_->read(file_, data_), data_.size());  // it is the child's that was closed
}

// The handle outlives the engine in the child.
TEST_P(Fork, HandleOutlivesTheEngineInTheChild) {
    std::vector<std::byte> back(data_.size());
    std::vector<Transfer> kept;
    kept.push_back(engine_->read_async(file_, back));
    engine_.reset();
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::alarm(60);
        kept.clear();
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(kept[0].wait(), back.size());
    EXPECT_TRUE(back == data_);
}

}  // namespace
}  // namespace penstock::suite
