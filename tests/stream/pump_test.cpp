// SPDX-License-Identifier: Apache-2.0
// The loop that moves units of several queues: two disks, each of which holds what is asked of it
// until it may go on.
#include "stream/pump.hpp"

#include "simulation/fake_file_system.hpp"
#include "stream/file_reader.hpp"

#include <penstock/penstock.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock::stream {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kUnitBytes = 64 << 10;
constexpr std::size_t kUnits = 20;

struct Unit : PumpUnit {
    std::size_t number = 0;
};

// Reads the same number of units from a file of each disk.
class Reads final : public PumpSource {
public:
    explicit Reads(const FileSystem& files) {
        for (const char* path : {"/0/file", "/1/file"}) {
            files_.push_back(files.open(path, {.access = Access::kRead}));
        }
    }

    PumpUnitPtr next(std::size_t queue) override {
        if (begun[queue] == may_begin.load() || begun[queue] == kUnits) {
            return nullptr;
        }
        auto unit = std::make_unique<Unit>();
        unit->number = begun[queue]++;
        unit->bytes = kUnitBytes;
        unit->request.files = {files_[queue]};
        const std::uint64_t offset = queue == fails_queue && unit->number == 3 ? 1 << 30 : 0;
        std::byte* const memory = memory_.data() + (queue * kUnits + unit->number) * kUnitBytes;
        unit->request.extents = {{offset, {memory, kUnitBytes}, 0}};
        return unit;
    }
    void ended(PumpUnitPtr unit, Transfer transfer) override {
        if (transfer.status() == TransferStatus::kFailed) {
            on_failed();
        }
        transfer.wait();
        ++done[unit->queue];
        if (on_ended) {
            on_ended();
        }
    }
    OwnWork own_work() override {
        return begun[0] + begun[1] == 2 * kUnits ? OwnWork::kOver : OwnWork::kNone;
    }

    std::atomic<std::size_t> may_begin{kUnits};
    std::size_t begun[2] = {};
    std::size_t done[2] = {};
    std::size_t fails_queue = 2;
    std::function<void()> on_ended;
    std::function<void()> on_failed = [] {};

private:
    std::vector<File> files_;
    std::vector<std::byte> memory_ = std::vector<std::byte>(2 * kUnits * kUnitBytes);
};

class PumpTest : public ::testing::Test {
protected:
    void SetUp() override {
        for (std::size_t i = 0; i < 2; ++i) {
            disks_[i]->set_faults([this, i](const simulation::DiskAccess&) {
                while (held_[i]) {
                    std::this_thread::sleep_for(1ms);
                }
                return simulation::Fault{};
            });
        }
        for (const char* path : {"/0/file", "/1/file"}) {
            files_.open(path, {.access = Access::kWrite, .create = true}).truncate(1 << 20);
        }
        use({});
        reads_ = std::make_unique<Reads>(files_);
    }
    void TearDown() override { release(); }
    void use(const EngineOptions& options) { engine_ = std::make_unique<Engine>(options, files_); }
    void release() { held_[0] = held_[1] = false; }
    void run(Progress progress = {}) {
        ProgressClock clock(std::move(progress), "test");
        Pump pump(*engine_, clock, {4 * kUnitBytes, 8});
        pump.run(*reads_, 2);
    }
    static std::shared_ptr<simulation::FakeDisk> disk(std::uint32_t number) {
        return std::make_shared<simulation::FakeDisk>(
            DeviceId{240, number}, simulation::DiskShape{}, simulation::DiskModel{}, number + 1);
    }

    std::shared_ptr<simulation::FakeDisk> disks_[2] = {disk(0), disk(1)};
    std::atomic<bool> held_[2] = {};
    FileSystem files_{std::make_shared<simulation::FakeFileSystem>(
        std::vector{disks_[0], disks_[1]}, std::make_shared<base::SteadyClock>())};
    std::unique_ptr<Engine> engine_;
    std::unique_ptr<Reads> reads_;
};

TEST_F(PumpTest, AQueueGoesOnWhileAnotherWaits) {
    held_[0] = true;
    reads_->on_ended = [&] {
        EXPECT_LE(reads_->begun[0], 4U);  // its window
        if (reads_->done[1] == kUnits) {
            EXPECT_EQ(reads_->done[0], 0U);
            release();
            reads_->on_ended = {};
        }
    };
    run();
    EXPECT_FALSE(held_[0]);
    EXPECT_EQ(reads_->done[0], kUnits);
}

TEST_F(PumpTest, UnitsThatBecomeReadyAreBegunAfterAWake) {
    reads_->may_begin = 0;
    ProgressClock clock({}, "test");
    Pump pump(*engine_, clock, {4 * kUnitBytes, 8});
    // Its last wake() may come after the last unit: it ends before the pump does.
    const std::jthread other([&] {
        for (std::size_t i = 1; i <= kUnits; ++i) {
            std::this_thread::sleep_for(1ms);
            reads_->may_begin = i;
            pump.wake();
        }
    });
    pump.run(*reads_, 2);
    EXPECT_EQ(reads_->done[0] + reads_->done[1], 2 * kUnits);
}

TEST_F(PumpTest, WaitsForRoomThatOthersHave) {
    use({.transfers_max = 1});
    held_[0] = true;
    std::vector<std::byte> into(4096);
    Transfer others = engine_->read_async("/0/file", into);
    std::thread other([&] {
        std::this_thread::sleep_for(20ms);
        release();
    });
    run();
    other.join();
    others.wait();
    EXPECT_EQ(reads_->done[0] + reads_->done[1], 2 * kUnits);
}

TEST_F(PumpTest, AnErrorCancelsTheRestAndWaits) {
    reads_->fails_queue = 1;
    held_[0] = true;
    std::thread other;
    reads_->on_failed = [&] {
        other = std::thread([&] {
            std::this_thread::sleep_for(20ms);
            release();
        });
    };
    try {
        run();
        ADD_FAILURE() << "it said nothing";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kEndOfFile);
    }
    EXPECT_TRUE(engine_->drain(5s));
    EXPECT_EQ(engine_->running(), 0U);
    EXPECT_LT(reads_->done[0], kUnits);
    other.join();
}

TEST_F(PumpTest, ProgressStopsItWhileItWaits) {
    held_[0] = held_[1] = true;
    try {
        run([&](std::uint64_t, std::uint64_t) {
            release();
            return false;
        });
        ADD_FAILURE() << "it said nothing";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
    }
}

// A small load, which has no pump: the memory is its caller's again when it throws.
TEST_F(PumpTest, ASmallLoadThatIsStoppedWaitsForTheDevice) {
    held_[0] = true;
    std::thread other([&] {
        std::this_thread::sleep_for(500ms);
        release();
    });
    std::vector<std::byte> into(1 << 19);  // too much for the caller's own thread
    const Wanted wanted{.offset = 0, .into = into};
    try {
        static_cast<void>(read_file(*engine_, files_.open("/0/file", {.access = Access::kRead}),
                                    {&wanted, 1}, {},
                                    [](std::uint64_t, std::uint64_t) { return false; }));
        ADD_FAILURE() << "it said nothing";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
    }
    EXPECT_EQ(engine_->running(), 0U);
    other.join();
}

}  // namespace
}  // namespace penstock::stream
