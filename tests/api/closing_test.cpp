// SPDX-License-Identifier: Apache-2.0
// drain() and close() while other threads go on asking: what was asked for before is waited for,
// and nothing else. The disk takes 1 ms a request, one after the other.
#include "simulation/fake_file_system.hpp"

#include <penstock/penstock.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kInFlight = 64;

class Closing : public ::testing::Test {
protected:
    void SetUp() override {
        disk_->set_faults([this](const simulation::DiskAccess&) -> simulation::Fault {
            do {
                std::this_thread::sleep_for(1ms);
            } while (held_);
            return {};
        });
        file_ = files_.open("/file", {.access = Access::kReadWrite, .create = true});
        file_.truncate(1 << 20);
        engine_ = std::make_unique<Engine>(EngineOptions{}, files_);
    }

    // Keeps so many in flight that there is never a moment without any, until it is refused.
    void prefetch() {
        std::vector<std::byte> into(4096);
        std::deque<Transfer> running;
        while (!stop_) {
            try {
                running.push_back(engine_->read_async(file_, into));
                asked_.fetch_add(1);
                if (running.size() == kInFlight) {
                    running.front().wait();
                    running.pop_front();
                }
            } catch (const Error& error) {
                refused_ = error.reason();
                break;
            }
        }
        for (Transfer& transfer : running) {
            transfer.wait();
        }
    }
    void start_prefetching() {
        prefetcher_ = std::thread([this] { prefetch(); });
        while (asked_ < kInFlight) {
            std::this_thread::yield();
        }
    }
    void stop_prefetching() {
        stop_ = true;
        prefetcher_.join();
    }

    std::shared_ptr<simulation::FakeDisk> disk_ = std::make_shared<simulation::FakeDisk>(
        DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1);
    FileSystem files_{std::make_shared<simulation::FakeFileSystem>(
        std::vector{disk_}, std::make_shared<base::SteadyClock>())};
    File file_;
    std::unique_ptr<Engine> engine_;
    std::thread prefetcher_;
    std::atomic<bool> held_{false};  ///< the disk: nothing comes back
    std::atomic<bool> stop_{false};
    std::atomic<std::size_t> asked_{0};
    std::optional<ErrorCode> refused_;
};

TEST_F(Closing, DrainWaitsForWhatWasAskedForBefore) {
    held_ = true;
    start_prefetching();
    std::vector<std::byte> into(4096);
    std::vector<Transfer> mine;
    for (int i = 0; i < 10; ++i) {
        mine.push_back(engine_->read_async(file_, into));
    }
    EXPECT_FALSE(engine_->drain(20ms));
    EXPECT_GT(engine_->running(), 0U);
    held_ = false;
    EXPECT_TRUE(engine_->drain(10s));
    for (const Transfer& transfer : mine) {
        EXPECT_TRUE(transfer.done());
    }
    const std::uint64_t all = engine_->submitted();
    EXPECT_GE(all, kInFlight + 10);
    EXPECT_TRUE(engine_->drain_first(all, 10s));
    EXPECT_TRUE(engine_->drain_first(1, 0s));
    stop_prefetching();
    EXPECT_FALSE(refused_);
    EXPECT_TRUE(engine_->drain(5s));
}

TEST_F(Closing, CloseRefusesWhatComesAfter) {
    held_ = true;
    start_prefetching();
    EXPECT_FALSE(engine_->closed());
    EXPECT_FALSE(engine_->close(0s));
    EXPECT_TRUE(engine_->closed());
    held_ = false;
    EXPECT_TRUE(engine_->close(10s));
    EXPECT_EQ(engine_->running(), 0U);
    prefetcher_.join();
    EXPECT_EQ(refused_, ErrorCode::kClosed);
    std::vector<std::byte> into(10);
    EXPECT_THROW(engine_->read("/file", into), Error);
    EXPECT_THROW(engine_->read(file_, into), Error);
    EXPECT_TRUE(engine_->close());
    EXPECT_GE(engine_->stats().requests, kInFlight);
}

TEST_F(Closing, CloseThrowsTheFirstErrorOfWhatWasDropped) {
    std::vector<std::byte> into(2 << 20);
    static_cast<void>(engine_->read_async(file_, into));
    try {
        engine_->close();
        ADD_FAILURE() << "it said nothing";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kEndOfFile);
    }
    EXPECT_TRUE(engine_->closed());
    EXPECT_TRUE(engine_->close());
}

}  // namespace
}  // namespace penstock
