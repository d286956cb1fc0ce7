// SPDX-License-Identifier: Apache-2.0
// Waiting for any of several transfers, and for room among `transfers_max`. The disk holds what is
// asked of it until it may go on.
#include "simulation/fake_file_system.hpp"

#include <penstock/penstock.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMemberBytes = 4096;

class Group : public ::testing::Test {
protected:
    void SetUp() override {
        for (const auto& disk : {first_, second_}) {
            disk->set_faults([this, &disk = *disk](const simulation::DiskAccess&) {
                const std::atomic<bool>& held = &disk == first_.get() ? first_held_ : second_held_;
                ++at_device_;
                while (held) {
                    std::this_thread::sleep_for(1ms);
                }
                return simulation::Fault{};
            });
        }
        for (const char* path : {"/0/file", "/1/file"}) {
            files_.open(path, {.access = Access::kWrite, .create = true}).truncate(1 << 20);
        }
        use({});
    }
    void TearDown() override {
        first_held_ = false;
        second_held_ = false;
    }
    void use(const EngineOptions& options) { engine_ = std::make_unique<Engine>(options, files_); }
    Transfer read(const std::string& path, std::uint64_t offset = 0) {
        return engine_->read_async(path, memory(), offset);
    }
    [[nodiscard]] TransferRequest request(const std::string& path) {
        TransferRequest request;
        request.paths = {path};
        request.extents = {{0, {memory().data(), kMemberBytes}, 0}};
        return request;
    }
    // Memory of each transfer: several run at once.
    std::span<std::byte> memory() { return memory_.emplace_back(kMemberBytes); }

    std::shared_ptr<simulation::FakeDisk> first_ = disk(0);
    std::shared_ptr<simulation::FakeDisk> second_ = disk(1);
    std::atomic<int> at_device_{0};
    std::atomic<bool> first_held_{false};
    std::atomic<bool> second_held_{false};
    FileSystem files_{std::make_shared<simulation::FakeFileSystem>(
        std::vector{first_, second_}, std::make_shared<base::SteadyClock>())};
    std::deque<std::vector<std::byte>> memory_;
    std::unique_ptr<Engine> engine_;

private:
    static std::shared_ptr<simulation::FakeDisk> disk(std::uint32_t number) {
        return std::make_shared<simulation::FakeDisk>(
            DeviceId{240, number}, simulation::DiskShape{}, simulation::DiskModel{}, number + 1);
    }
};

TEST_F(Group, TheFirstToEndIsTheFirstToBeReturned) {
    first_held_ = true;
    TransferGroup group;
    EXPECT_TRUE(group.empty());
    EXPECT_FALSE(group.wait_any());
    EXPECT_EQ(group.add(read("/0/file")), 0U);
    EXPECT_EQ(group.add(read("/1/file")), 1U);
    EXPECT_EQ(group.size(), 2U);
    auto ended = group.wait_any();
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->number, 1U);
    EXPECT_EQ(ended->transfer.wait(), kMemberBytes);
    EXPECT_FALSE(group.wait_any(20ms));
    EXPECT_EQ(group.size(), 1U);
    first_held_ = false;
    ended = group.wait_any();
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->number, 0U);
    EXPECT_TRUE(group.empty());
}

TEST_F(Group, ReturnsEachOfManyOnceAlsoTheFailed) {
    TransferGroup group;
    std::set<std::uint64_t> seen;
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 50; ++i) {
            group.add(read(i % 2 == 0 ? "/0/file" : "/1/file", i == 7 ? 2 << 20 : 0));
        }
        while (auto ended = group.wait_any()) {
            EXPECT_TRUE(seen.insert(ended->number).second);
            EXPECT_EQ(ended->transfer.status() == TransferStatus::kFailed, ended->number % 50 == 7);
        }
    }
    EXPECT_EQ(seen.size(), 1000U);
    EXPECT_EQ(*seen.rbegin(), 999U);
}

TEST_F(Group, TakesWhatIsOverAndRefusesAnEmptyHandle) {
    TransferGroup group;
    Transfer transfer = read("/0/file");
    transfer.wait();
    group.add(std::move(transfer));
    EXPECT_TRUE(group.wait_any(0s));
    EXPECT_THROW(group.add(Transfer()), Error);
}

TEST_F(Group, WakeEndsAWait) {
    first_held_ = true;
    TransferGroup group;
    group.add(read("/0/file"));
    std::thread other([&] {
        std::this_thread::sleep_for(10ms);
        group.wake();
    });
    EXPECT_FALSE(group.wait_any());
    other.join();
    group.wake();
    EXPECT_FALSE(group.wait_any());
    first_held_ = false;
    EXPECT_TRUE(group.wait_any());
}

TEST_F(Group, DestructionCancelsAndWaits) {
    first_held_ = true;
    std::thread other;
    {
        TransferGroup group;
        for (int i = 0; i < 200; ++i) {
            group.add(read("/0/file", static_cast<std::uint64_t>(i) * 4096));
        }
        while (at_device_ == 0) {
            std::this_thread::sleep_for(1ms);
        }
        other = std::thread([&] {
            std::this_thread::sleep_for(20ms);
            first_held_ = false;
        });
    }
    EXPECT_FALSE(first_held_);  // what was at the device came back
    other.join();
    EXPECT_TRUE(engine_->drain());
}

TEST_F(Group, AChildOfAForkSeesTheParentsTransfersCancelled) {
#ifdef PENSTOCK_TSAN
    GTEST_SKIP() << "ThreadSanitizer has no threads in the child of a fork with threads";
#endif
    first_held_ = true;
    TransferGroup group;
    group.add(read("/0/file"));
    group.add(read("/0/file"));
    std::thread other([&] {  // fork() waits for what is at the device
        std::this_thread::sleep_for(20ms);
        first_held_ = false;
    });
    const pid_t child = ::fork();
    if (child == 0) {
        int ended = 0;
        while (group.wait_any()) {
            ++ended;
        }
        ::_exit(ended == 2 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    other.join();
    EXPECT_TRUE(group.wait_any());
    EXPECT_TRUE(group.wait_any());
}

TEST_F(Group, NoRoomIsNothingAndRoomIsWaitedFor) {
    use({.transfers_max = 2});
    first_held_ = true;
    TransferGroup group;
    for (int i = 0; i < 2; ++i) {
        auto transfer = engine_->try_submit(request("/0/file"));
        ASSERT_TRUE(transfer);
        group.add(std::move(*transfer));
    }
    EXPECT_FALSE(engine_->try_submit(request("/1/file")));
    EXPECT_FALSE(engine_->try_run(request("/1/file")));
    EXPECT_FALSE(engine_->wait_for_room(10ms));
    std::thread other([&] {
        std::this_thread::sleep_for(20ms);
        first_held_ = false;
    });
    EXPECT_TRUE(engine_->wait_for_room());
    EXPECT_FALSE(first_held_);
    other.join();
    EXPECT_TRUE(engine_->try_run(request("/1/file")));
    TransferRequest wrong = request("/1/file");
    wrong.extents.front().file = 7;
    EXPECT_THROW(static_cast<void>(engine_->try_submit(wrong)), Error);
}

// Many threads want the one place; each sleeps until it comes.
TEST_F(Group, RoomIsSeenByAllWhoWaitForIt) {
    use({.transfers_max = 1});
    std::atomic<int> done{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
        threads.emplace_back([&, mine = request("/0/file")] {
            for (int i = 0; i < 50; ++i) {
                std::optional<Transfer> transfer;
                while (!(transfer = engine_->try_submit(mine))) {
                    ASSERT_TRUE(engine_->wait_for_room(30s));
                }
                transfer->wait();
                ++done;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(done, 300);
}

}  // namespace
}  // namespace penstock
