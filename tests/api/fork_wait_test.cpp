// SPDX-License-Identifier: Apache-2.0
// fork() waits for what is at the device, and for nothing else: not for opens, not for syncs. After
// prepare_fork() it waits for nothing at all, and nothing is drawn in between.
#include "simulation/fake_file_system.hpp"

#include <penstock/penstock.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class ForkWait : public ::testing::Test {
protected:
    void SetUp() override {
#ifdef PENSTOCK_TSAN
        GTEST_SKIP() << "ThreadSanitizer has no threads in the child of a fork with threads";
#endif
        file_ = files_.open("/file", {.access = Access::kReadWrite, .create = true});
        file_.truncate(1 << 20);
        // Without the disk's lock, so that the child can use the disk.
        disk_->set_watch([this](const simulation::DiskOperation& operation) {
            if (operation.call == slow_call_ && operation.path != "/file") {
                entered_ = true;
                while (!let_go_) {
                    std::this_thread::sleep_for(1ms);
                }
            }
        });
        engine_ = std::make_unique<Engine>(EngineOptions{}, files_);
    }
    void TearDown() override {
        let_go_ = true;
    }

    // How long fork() took; the child does `work` and ends with 0 when it says true.
    std::chrono::nanoseconds fork_now(const std::function<bool()>& work) {
        const auto begin = Clock::now();
        const pid_t pid = ::fork();
        if (pid == 0) {
            ::alarm(60);
            ::_exit(work() ? 0 : 1);
        }
        const auto took = Clock::now() - begin;
        int status = 0;
        EXPECT_EQ(::waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
        return took;
    }
    void wait_until_entered() {
        while (!entered_) {
            std::this_thread::yield();
        }
    }
    static bool is_cancelled(Transfer& transfer) {
        try {
            transfer.wait();
            return false;
        } catch (const Error& error) {
            return error.reason() == ErrorCode::kCancelled;
        }
    }

    std::atomic<simulation::DiskCall> slow_call_{simulation::DiskCall::kLock};
    std::atomic<bool> entered_{false};
    std::atomic<bool> let_go_{false};
    std::shared_ptr<simulation::FakeDisk> disk_ = std::make_shared<simulation::FakeDisk>(
        DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1);
    FileSystem files_{std::make_shared<simulation::FakeFileSystem>(
        std::vector{disk_}, std::make_shared<base::SteadyClock>())};
    File file_;
    std::unique_ptr<Engine> engine_;
    std::vector<std::byte> data_ = std::vector<std::byte>(10'000, std::byte{1});
};

// The parent's goes on, the child's is cancelled and works on from scratch.
TEST_F(ForkWait, NotForAnOpen) {
    slow_call_ = simulation::DiskCall::kOpen;
    Transfer transfer = engine_->write_async("/slow", data_);
    wait_until_entered();
    const auto took = fork_now([&] {
        const bool cancelled = is_cancelled(transfer);
        transfer.cancel();
        transfer.set_priority(Priority::kUrgent);
        std::vector<std::byte> back(100);
        return cancelled && engine_->read(file_, back) == 100 && engine_->drain();
    });
    EXPECT_LT(took, 20s);
    EXPECT_FALSE(transfer.done());
    let_go_ = true;
    EXPECT_EQ(transfer.wait(), data_.size());
}

TEST_F(ForkWait, NotForASync) {
    for (const bool inline_too : {false, true}) {
        slow_call_ = simulation::DiskCall::kSync;
        entered_ = let_go_ = false;
        const std::string path = inline_too ? "/inline" : "/slow";
        const File other = files_.open(path, {.access = Access::kReadWrite, .create = true});
        std::optional<Transfer> transfer;
        std::thread caller([&] {
            TransferOptions options;
            options.sync = true;
            if (inline_too) {
                engine_->write(other, data_, 0, options);
            } else {
                transfer = engine_->write_async(other, data_, 0, options);
            }
        });
        wait_until_entered();
        const auto took = fork_now([&] {
            std::vector<std::byte> back(100);
            return engine_->read(file_, back) == 100;
        });
        EXPECT_LT(took, 20s);
        let_go_ = true;
        caller.join();
        EXPECT_TRUE(engine_->drain(10s));
    }
}

// Syncs have all the threads that also write the ends of runs: what waits for a thread is not at
// the device.
TEST_F(ForkWait, NotForWhatWaitsForASync) {
    slow_call_ = simulation::DiskCall::kSync;
    std::vector<File> others;
    std::vector<Transfer> transfers;
    TransferOptions options;
    options.sync = true;
    for (int i = 0; i < 8; ++i) {
        others.push_back(files_.open("/slow" + std::to_string(i),
                                     {.access = Access::kReadWrite, .create = true}));
        transfers.push_back(engine_->write_async(others.back(), data_, 0, options));
    }
    wait_until_entered();
    std::this_thread::sleep_for(50ms);
    for (int i = 0; i < 8; ++i) {  // all ends, no middle
        transfers.push_back(engine_->write_async(file_, data_, 100));
    }
    std::this_thread::sleep_for(50ms);
    EXPECT_LT(fork_now([&] { return engine_->drain(); }), 20s);
    let_go_ = true;
    for (Transfer& transfer : transfers) {
        EXPECT_EQ(transfer.wait(), data_.size());
    }
}

TEST_F(ForkWait, PreparedItHoldsEverythingBack) {
    std::vector<std::byte> back(100'000);
    EXPECT_EQ(engine_->read(file_, back), back.size());
    prepare_fork();
    Transfer large = engine_->read_async(file_, back);
    std::atomic<bool> small_done{false};
    std::thread small([&] {
        std::vector<std::byte> into(100);
        engine_->read(file_, into);
        small_done = true;
    });
    // Another thread may fork meanwhile, which does not release what this one holds.
    std::thread other([&] { EXPECT_LT(fork_now([] { return true; }), 20s); });
    other.join();
    EXPECT_FALSE(large.wait_for(100ms));
    EXPECT_FALSE(small_done);
    EXPECT_LT(fork_now([&] { return is_cancelled(large) && engine_->read(file_, back) != 0; }),
              20s);
    EXPECT_EQ(large.wait_for(10s).value_or(0), back.size());
    small.join();
    prepare_fork();
    prepare_fork();
    large = engine_->read_async(file_, back);
    EXPECT_FALSE(large.wait_for(50ms));
    end_fork();
    end_fork();
    EXPECT_EQ(large.wait_for(10s).value_or(0), back.size());
}

}  // namespace
}  // namespace penstock
