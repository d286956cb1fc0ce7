// SPDX-License-Identifier: Apache-2.0
// The mover of a GPU on the fake driver: bytes, order, slots that are used again at once, when
// copies are looked at, and its end.
#include "device/cuda/context.hpp"
#include "device/gpu_mover_fixture.hpp"
#include "device/mover/stream_order.hpp"

#include <deque>

namespace penstock::device {
namespace {

using engine::MoveTo;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST_F(GpuMovers, CarryBytesInAndOut) {
    make();
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes);
    const std::vector<std::byte> bytes = random_bytes(kSlotBytes);
    std::memcpy(slot(0), bytes.data(), bytes.size());
    Trip in(MoveTo::kExtents, {piece(memory, kSlotBytes)}, slot(0), kSlotBytes);
    run(in);
    EXPECT_EQ(in.move.error, 0);
    EXPECT_EQ(in.move.bytes, kSlotBytes);
    EXPECT_EQ(look(memory, kSlotBytes), bytes);
    Trip out(MoveTo::kSlot, {piece(memory, kSlotBytes)}, slot(1), kSlotBytes);
    run(out);
    EXPECT_EQ(out.move.error, 0);
    EXPECT_EQ(std::memcmp(slot(1), bytes.data(), bytes.size()), 0);
}

// Pieces that adjoin on both sides are one copy, others are one call where the driver takes it.
TEST_F(GpuMovers, CarryManyPiecesAtOddPlaces) {
    make();
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes * 2);
    std::vector<Extent> list;
    std::vector<std::byte> expected = look(memory, kSlotBytes * 2);
    const std::vector<std::byte> bytes = random_bytes(kSlotBytes);
    std::memcpy(slot(0), bytes.data(), bytes.size());
    std::uint64_t from = 0;
    std::uint64_t to = 3;
    while (from < 20'000) {
        const std::uint64_t step = random_() % 90;  // empty ones too
        list.push_back(piece(memory + to, step));
        std::memcpy(expected.data() + to, bytes.data() + from, step);
        from += step;
        to += step + random_() % 3;
    }
    const std::uint64_t before = fake_->calls("cuMemcpyHtoDAsync");
    Trip in(MoveTo::kExtents, list, slot(0), from);
    run(in);
    EXPECT_EQ(in.move.error, 0);
    EXPECT_EQ(in.move.bytes, from);
    EXPECT_EQ(look(memory, kSlotBytes * 2), expected);
    Trip out(MoveTo::kSlot, list, slot(1), from);
    run(out);
    EXPECT_EQ(std::memcmp(slot(1), bytes.data(), from), 0);
    const std::uint64_t calls = fake_->calls("cuMemcpyHtoDAsync") - before;
    if (driver_->cuMemcpyBatchAsync != nullptr) {
        EXPECT_LE(calls, 1U);  // the last batch may hold one piece
        EXPECT_GT(fake_->calls("cuMemcpyBatchAsync"), 2U);
    } else {
        EXPECT_GT(calls, 100U);
    }
}

TEST_F(GpuMovers, CarryWithoutBatchesToo) {
    EXPECT_TRUE(runs_alone("GpuMovers.CarryManyPiecesAtOddPlaces:GpuMovers.CarryOverGaps",
                           {"FAKE_GPU_HIDE=cuMemcpyBatchAsync"}));
}

// A driver may have the call and refuse it (virtual GPUs).
TEST_F(GpuMovers, GoOnWithSingleCopiesWhereBatchesAreRefused) {
    make();
    fake_->fail("cuMemcpyBatchAsync", 1, cuda::CUDA_ERROR_NOT_SUPPORTED);
    const cuda::CUdeviceptr memory = device_bytes(100);
    const std::vector<std::byte> bytes = random_bytes(20);
    std::memcpy(slot(0), bytes.data(), 20);
    const std::uint64_t before = fake_->calls("cuMemcpyHtoDAsync");
    Trip in(MoveTo::kExtents, {piece(memory, 10), piece(memory + 50, 10)}, slot(0), 20);
    run(in);
    EXPECT_EQ(in.move.error, 0);
    EXPECT_EQ(look(memory + 50, 10), std::vector<std::byte>(bytes.begin() + 10, bytes.end()));
    EXPECT_EQ(fake_->calls("cuMemcpyHtoDAsync") - before, 2U);
}

TEST_F(GpuMovers, CarryOverGaps) {
    make();
    const cuda::CUdeviceptr memory = device_bytes(300);
    const std::vector<std::byte> bytes = random_bytes(1000);
    std::memcpy(slot(0), bytes.data(), bytes.size());
    // Bytes 100 to 1100 of a file are in the slot; three extents lie in them, the last is cut.
    Trip in(
        MoveTo::kExtents,
        {piece(memory, 100, 100), piece(memory + 100, 100, 500), piece(memory + 200, 100, 1050)},
        slot(0), 1000);
    in.draft.offset = 100;
    in.draft.extents = 3;
    run(in);
    EXPECT_EQ(in.move.error, 0);
    EXPECT_EQ(in.move.bytes, 250U);
    const std::vector<std::byte> found = look(memory, 250);
    EXPECT_EQ(std::memcmp(found.data(), bytes.data(), 100), 0);
    EXPECT_EQ(std::memcmp(found.data() + 100, bytes.data() + 400, 100), 0);
    EXPECT_EQ(std::memcmp(found.data() + 200, bytes.data() + 950, 50), 0);
}

// Slots are written to again the moment they are back, while streams and engines reorder.
TEST_F(GpuMovers, GiveBackSlotsOnlyAfterTheirCopies) {
    make();
    constexpr std::size_t kSlots = 6;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        fake_->set_delays(seed, 60);
        const std::uint64_t all = 20 * kSlotBytes;
        const cuda::CUdeviceptr to = device_bytes(all);
        const cuda::CUdeviceptr from = device_bytes(all);
        const std::vector<std::byte> bytes = random_bytes(all);
        put(from, bytes);
        std::vector<std::byte> back(all);
        std::deque<std::unique_ptr<Trip>> trips;
        std::vector<std::size_t> free_slots;
        for (std::size_t i = 0; i < kSlots; ++i) {
            free_slots.push_back(i);
        }
        std::uint64_t next_in = 0;
        std::uint64_t next_out = 0;
        std::size_t out = 0;
        const auto end = std::chrono::steady_clock::now() + 20s;
        while (next_in < all || next_out < all || out != 0) {
            ASSERT_LT(std::chrono::steady_clock::now(), end);
            while (!free_slots.empty() && (next_in < all || next_out < all)) {
                std::byte* mine = slot(free_slots.back());
                const bool in = next_out == all || (next_in < all && random_() % 2 == 0);
                std::uint64_t& next = in ? next_in : next_out;
                const std::uint64_t step =
                    std::min<std::uint64_t>(1 + random_() % kSlotBytes, all - next);
                if (in) {
                    std::memcpy(mine, bytes.data() + next, step);
                }
                free_slots.pop_back();
                trips.push_back(std::make_unique<Trip>(
                    in ? MoveTo::kExtents : MoveTo::kSlot,
                    std::vector<Extent>{piece((in ? to : from) + next, step, next)}, mine, step));
                mover_->start(trips.back()->move);
                next += step;
                ++out;
            }
            for (Trip* trip : reap(*mover_)) {
                ASSERT_EQ(trip->move.error, 0);
                if (trip->move.to == MoveTo::kSlot) {
                    std::memcpy(back.data() + trip->extents[0].offset, trip->move.slot,
                                trip->move.bytes);
                }
                std::memset(trip->move.slot, 0x5A, kSlotBytes);
                free_slots.push_back(static_cast<std::size_t>(trip->move.slot - block_.data()) /
                                     kSlotBytes);
                --out;
            }
            std::this_thread::sleep_for(5us);
        }
        ASSERT_EQ(back, bytes) << "seed " << seed;
        ASSERT_EQ(look(to, all), bytes) << "seed " << seed;
    }
    const FakeGpuCounters counted = fake_->counters();
    EXPECT_EQ(counted.synchronizations, 0U);
    EXPECT_EQ(counted.unpinned_async_copies, 0U);
    EXPECT_EQ(counted.missing_contexts, 0U);
    EXPECT_LE(counted.events_made, kSlots);
    EXPECT_EQ(counted.streams_made, 2U);
}

// A move out after the event of the caller's stream brings the bytes that the stream wrote.
TEST_F(GpuMovers, SeeWhatTheCallersStreamDidBefore) {
    make();
    const Current current(*driver_, primary_context(*driver_, 0).value());
    cuda::CUstream callers = nullptr;
    ASSERT_EQ(driver_->cuStreamCreate(&callers, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes);
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
        fake_->set_delays(seed, 300);
        // The caller's stream writes the memory; a move out, ordered after it, has what was
        // written.
        const std::vector<std::byte> bytes = random_bytes(kSlotBytes);
        std::memcpy(slot(3), bytes.data(), bytes.size());
        ASSERT_EQ(driver_->cuMemcpyHtoDAsync(memory, slot(3), kSlotBytes, callers),
                  cuda::CUDA_SUCCESS);
        const StreamHandle handle{reinterpret_cast<std::uintptr_t>(callers), 0};
        const engine::MemoryPlace place{MemoryKind::kDevice, 0};
        auto order = make_order({&handle, 1}, {&place, 1});
        ASSERT_TRUE(order.has_value()) << order.error().describe();
        Trip first(MoveTo::kSlot, {piece(memory, 100)}, slot(0), 100);
        Trip second(MoveTo::kSlot, {piece(memory, kSlotBytes)}, slot(1), kSlotBytes);
        while (*order != nullptr && !(*order)->passed().value()) {
            std::this_thread::sleep_for(5us);
        }
        mover_->start(first.move);
        mover_->start(second.move);
        wait_for(first);
        wait_for(second);
        ASSERT_EQ(second.move.error, 0);
        ASSERT_EQ(std::memcmp(slot(0), bytes.data(), 100), 0) << "seed " << seed;
        ASSERT_EQ(std::memcmp(slot(1), bytes.data(), kSlotBytes), 0) << "seed " << seed;
    }
    EXPECT_EQ(fake_->counters().synchronizations, 0U);
    driver_->cuStreamDestroy(callers);
}

TEST_F(GpuMovers, LeaveTheCallersContextCurrent) {
    make();
    cuda::CUcontext before = nullptr;
    cuda::CUcontext after = nullptr;
    driver_->cuCtxGetCurrent(&before);
    const cuda::CUdeviceptr memory = device_bytes(64);
    Trip in(MoveTo::kExtents, {piece(memory, 64)}, slot(0), 64);
    run(in);
    driver_->cuCtxGetCurrent(&after);
    EXPECT_EQ(before, after);
    EXPECT_EQ(in.move.error, 0);
}

TEST_F(GpuMovers, SayWhyMemoryCouldNotBePinned) {
    auto made = GpuMover::make(0);
    ASSERT_TRUE(made.has_value());
    fake_->fail("cuMemHostRegister", 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
    const auto refused = (*made)->slot_memory(2 << 20);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
    for (const char* word : {"2 MiB", "GPU 0", "cuMemHostRegister", "CUDA_ERROR_OUT_OF_MEMORY",
                             "ulimit -l", "control group"}) {
        EXPECT_THAT(refused.error().message, HasSubstr(word));
    }
    const auto block = (*made)->slot_memory(2 << 20);
    EXPECT_TRUE(block.has_value()) << block.error().describe();
    made->reset();
}

// Another library unmapped memory that it had registered, and the same addresses are ours now.
TEST_F(GpuMovers, TakeAddressesThatWereLeftRegistered) {
    auto made = GpuMover::make(0);
    ASSERT_TRUE(made.has_value());
    fake_->fail("cuMemHostRegister", 1, cuda::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    const auto block = (*made)->slot_memory(2 << 20);
    EXPECT_TRUE(block.has_value()) << block.error().describe();
    made->reset();
}

TEST_F(GpuMovers, AreOfGpusThatExist) {
    for (const std::int32_t number : {-1, 1, 1000}) {
        const auto made = GpuMover::make(number);
        ASSERT_FALSE(made.has_value());
        EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(made.error().message, HasSubstr(std::to_string(number)));
    }
}

TEST_F(GpuMovers, AreLookedAtSoon) {
    make();
    const cuda::CUdeviceptr memory = device_bytes(kSlotBytes);
    fake_->hold(true);
    for (const std::uint64_t bytes : {std::uint64_t{1}, kSlotBytes}) {
        auto trip = std::make_unique<Trip>(
            MoveTo::kExtents, std::vector<Extent>{piece(memory, bytes)}, slot(0), bytes);
        mover_->start(trip->move);
        EXPECT_GE(mover_->look_again(), 5'000);
        EXPECT_LE(mover_->look_again(), 20'000);
        EXPECT_TRUE(reap(*mover_).empty());
        fake_->hold(false);
        wait_for(*trip);
        fake_->hold(true);
    }
}

// Eight slots at 1 GB/s take 524 us, and so does a quarter of 32; three quarters of it are slept.
TEST_F(GpuMovers, AreLookedAtAQuarterAtATime) {
    constexpr std::size_t kSlots = 32;
    make(clock_);
    const cuda::CUdeviceptr memory = device_bytes(kSlots * kSlotBytes);
    const auto trip_of = [&](std::size_t slots, std::size_t first) {
        return std::make_unique<Trip>(
            MoveTo::kExtents,
            std::vector<Extent>{piece(memory + first * kSlotBytes, slots * kSlotBytes)},
            slot(first), slots * kSlotBytes);
    };
    const auto measured = trip_of(8, 0);
    mover_->start(measured->move);
    clock_.advance_to(8 * kSlotBytes);
    wait_for(*measured);

    fake_->hold(true);
    std::vector<std::unique_ptr<Trip>> trips;
    for (std::size_t i = 0; i < kSlots; ++i) {
        trips.push_back(trip_of(1, i));
        mover_->start(trips.back()->move);
        EXPECT_EQ(mover_->look_again(), std::max((i + 1) * kSlotBytes / 4, kSlotBytes) * 3 / 4)
            << i;
    }
    fake_->hold(false);
    for (const auto& trip : trips) {
        wait_for(*trip);
    }
}

}  // namespace
}  // namespace penstock::device
