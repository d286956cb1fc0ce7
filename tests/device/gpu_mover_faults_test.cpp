// SPDX-License-Identifier: Apache-2.0
// The mover of a GPU when the driver refuses, each call once and queries several times in a row,
// and in the child of a fork.
#include "device/cuda/context.hpp"
#include "device/gpu_mover_fixture.hpp"
#include "device/mover/stream_order.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace penstock::device {
namespace {

using engine::MoveTo;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Each refusal of a query costs a look, and no more: the copy uses the slot until it ends.
TEST_F(GpuMovers, ReturnNoSlotWhileRefusedQueriesSayNothingOfItsCopy) {
    make();
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes);
    fake_->hold(true);
    Trip trip(MoveTo::kExtents, {piece(memory, kSlotBytes)}, slot(0), kSlotBytes);
    mover_->start(trip.move);
    fake_->fail("cuEventQuery", 1, cuda::CUDA_ERROR_INVALID_VALUE, 1);
    static_cast<void>(reap(*mover_));
    fake_->fail("cuStreamQuery", 1, cuda::CUDA_ERROR_INVALID_VALUE, 5);
    for (int i = 0; i < 10; ++i) {
        EXPECT_TRUE(reap(*mover_).empty());
    }
    fake_->hold(false);
    wait_for(trip);
    EXPECT_NE(trip.move.error, 0);
    EXPECT_EQ(trip.move.bytes, 0U);
}

// A scenario with every kind of call; what came out of it may be an error, and nothing else.
class FaultyGpuMovers : public GpuMovers {
protected:
    void scenario() {
        auto made = GpuMover::make(0);
        if (!made) {
            said(made.error());
            return;
        }
        GpuMover& mover = **made;
        auto block = mover.slot_memory(16 * kSlotBytes);
        if (!block) {
            said(block.error());
            return;
        }
        const StreamHandle handle{reinterpret_cast<std::uintptr_t>(stream_), 0};
        const engine::MemoryPlace place{MemoryKind::kDevice, 0};
        auto order = make_order({&handle, 1}, {&place, 1});
        if (!order) {
            said(order.error());
            return;
        }
        if (*order != nullptr) {
            if (auto passed = (*order)->passed(); !passed) {
                said(passed.error());
                return;
            }
        }
        std::vector<std::unique_ptr<Trip>> trips;
        for (std::size_t i = 0; i < 8; ++i) {
            std::byte* mine = block->data() + i * kSlotBytes;
            std::memset(mine, static_cast<int>(i + 1), kSlotBytes);
            const cuda::CUdeviceptr memory = memory_of_ + i * kSlotBytes;
            std::vector<Extent> list = {piece(memory, 1000), piece(memory + 2000, 1000)};
            if (i % 3 == 0) {
                list = {piece(memory, 2000)};
            }
            const bool in = i % 2 == 0;
            trips.push_back(
                std::make_unique<Trip>(in ? MoveTo::kExtents : MoveTo::kSlot, list, mine, 2000));
            mover.start(trips.back()->move);
        }
        std::size_t out = trips.size();
        const auto end = std::chrono::steady_clock::now() + 20s;
        while (out != 0) {
            ASSERT_LT(std::chrono::steady_clock::now(), end) << "a move never came back";
            out -= reap(mover).size();
            std::this_thread::sleep_for(5us);
        }
        for (std::size_t i = 0; i < trips.size(); ++i) {
            const Trip& trip = *trips[i];
            if (trip.move.error != 0) {
                EXPECT_EQ(trip.move.bytes, 0U);
                said(mover.explain(trip.move));
                continue;
            }
            EXPECT_EQ(trip.move.bytes, 2000U);
            const bool in = trip.move.to == MoveTo::kExtents;
            const std::byte last =
                in ? look(memory_of_ + i * kSlotBytes + (i % 3 == 0 ? 1999 : 2999), 1).front()
                   : trip.move.slot[1999];
            EXPECT_EQ(last, in ? static_cast<std::byte>(i + 1) : std::byte{0xDB}) << "move " << i;
        }
    }
    void said(const base::Error& error) {
        ++errors_;
        said_ = error.describe();
        EXPECT_THAT(error.describe(), HasSubstr("CUDA"));
        EXPECT_THAT(error.describe(), HasSubstr("GPU"));
    }

    cuda::CUstream stream_ = nullptr;
    cuda::CUdeviceptr memory_of_ = 0;
    int errors_ = 0;
    std::string said_;
};

TEST_F(FaultyGpuMovers, EndEachMoveOnceWhicheverCallFails) {
    const Current current(*driver_, primary_context(*driver_, 0).value());
    ASSERT_EQ(driver_->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
    const std::uint64_t all = 8 * kSlotBytes;
    std::uint64_t nth = 1;
    int failed = 0;
    for (;; ++nth) {
        ASSERT_LT(nth, 400U);
        memory_of_ = device_bytes(all);
        fake_->reset_counters();
        errors_ = 0;
        // A mover whose end met the fault leaves what it could not give back.
        const std::uint64_t pinned = fake_->counters().pinned_bytes_now;
        const std::uint64_t streams = fake_->counters().streams_now;
        fake_->fail("*", nth, cuda::CUDA_ERROR_LAUNCH_FAILED);
        scenario();
        ASSERT_FALSE(HasFatalFailure()) << "call " << nth;
        const bool met = fake_->counters().failed_by_order != 0;
        fake_->calm();
        failed += errors_ != 0 ? 1 : 0;
        EXPECT_EQ(fake_->counters().missing_contexts, 0U) << "call " << nth;
        if (!met) {
            EXPECT_EQ(errors_, 0) << said_ << " at call " << nth;
            EXPECT_EQ(fake_->counters().pinned_bytes_now, pinned);
            EXPECT_EQ(fake_->counters().streams_now, streams);
            break;
        }
    }
    EXPECT_GT(nth, 50U);
    EXPECT_GT(failed, 30);
    driver_->cuStreamDestroy(stream_);
}

TEST_F(GpuMovers, EndAllMovesWhenTheGpuFails) {
    make();
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes);
    fake_->hold(true);
    std::vector<std::unique_ptr<Trip>> trips;
    for (std::size_t i = 0; i < 6; ++i) {
        trips.push_back(std::make_unique<Trip>(i % 2 == 0 ? MoveTo::kExtents : MoveTo::kSlot,
                                               std::vector<Extent>{piece(memory, kSlotBytes)},
                                               slot(i), kSlotBytes));
        mover_->start(trips.back()->move);
    }
    fake_->set_broken(cuda::CUDA_ERROR_ECC_UNCORRECTABLE);
    fake_->hold(false);
    for (const auto& trip : trips) {
        wait_for(*trip);
        EXPECT_NE(trip->move.error, 0);
        EXPECT_THAT(mover_->explain(trip->move).describe(),
                    HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
    }
    Trip later(MoveTo::kExtents, {piece(memory, 64)}, slot(0), 64);
    run(later);
    EXPECT_NE(later.move.error, 0);
    fake_->set_broken(0);
}

TEST_F(GpuMovers, AreWaitedForAtTheirEnd) {
    const FakeGpuCounters before = fake_->counters();  // copy_memory() keeps streams
    make();
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes);
    const std::vector<std::byte> bytes = random_bytes(kSlotBytes);
    std::memcpy(slot(0), bytes.data(), bytes.size());
    fake_->hold(true);
    Trip in(MoveTo::kExtents, {piece(memory, kSlotBytes)}, slot(0), kSlotBytes);
    mover_->start(in.move);
    std::thread later([&] {
        std::this_thread::sleep_for(30ms);
        fake_->hold(false);
    });
    mover_.reset();
    block_ = {};
    later.join();
    EXPECT_EQ(look(memory, kSlotBytes), bytes);
    const FakeGpuCounters counted = fake_->counters();
    EXPECT_EQ(counted.pinned_bytes_now, 0U);
    EXPECT_EQ(counted.streams_now, before.streams_now);
    EXPECT_EQ(counted.events_now, before.events_now);
    EXPECT_EQ(counted.synchronizations, 0U);
}

TEST_F(GpuMovers, LeaveCudaAloneInTheChildOfAFork) {
    make();
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes);
    fake_->hold(true);
    Trip in(MoveTo::kExtents, {piece(memory, kSlotBytes)}, slot(0), kSlotBytes);
    mover_->start(in.move);
    const std::uint64_t calls = fake_->counters().calls;
    const pid_t child = ::fork();
    if (child == 0) {
        mover_->abandon_after_fork();
        mover_.reset();
        block_ = {};
        ::_exit(fake_->counters().calls == calls ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    fake_->hold(false);
    wait_for(in);
    EXPECT_EQ(in.move.error, 0);
}

}  // namespace
}  // namespace penstock::device
