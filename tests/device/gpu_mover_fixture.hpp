// SPDX-License-Identifier: Apache-2.0
// A mover of a GPU on the fake driver, with slots, and moves that point to all that they need.
#pragma once

#include "device/fake_gpu.hpp"
#include "device/mover/gpu_mover.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace penstock::device {

inline constexpr std::uint64_t kSlotBytes = 64 << 10;

inline std::byte* at(cuda::CUdeviceptr address) {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

/// A move with all that it points to.
struct Trip {
    engine::Extents extents;
    engine::Draft draft;
    engine::Move move;
    bool back = false;

    Trip(engine::MoveTo to, std::vector<Extent> list, std::byte* slot, std::uint64_t bytes)
        : extents(std::move(list)) {
        draft.slot = true;
        draft.wanted_bytes = static_cast<std::uint32_t>(bytes);
        move.to = to;
        move.owner = this;
        move.extents = &extents;
        move.draft = &draft;
        move.slot = slot;
        move.bytes = bytes;
    }
    Trip(const Trip&) = delete;
    Trip& operator=(const Trip&) = delete;
};

inline Extent piece(cuda::CUdeviceptr memory, std::uint64_t bytes, std::uint64_t offset = 0) {
    return {offset, Memory(at(memory), bytes, MemoryKind::kDevice, 0), 0};
}

class GpuMovers : public OnFakeGpu {
protected:
    void make(const base::Clock& clock = kSteadyClock) {
        auto made = GpuMover::make(0, clock);
        ASSERT_TRUE(made.has_value()) << made.error().describe();
        mover_ = std::move(*made);
        auto memory = mover_->slot_memory(32 * kSlotBytes);
        ASSERT_TRUE(memory.has_value()) << memory.error().describe();
        block_ = std::move(*memory);
    }
    void TearDown() override {
        fake_->calm();
        mover_.reset();
        OnFakeGpu::TearDown();
    }
    [[nodiscard]] std::byte* slot(std::size_t number) const {
        return block_.data() + number * kSlotBytes;
    }
    /// Those that came back, each once.
    std::vector<Trip*> reap(GpuMover& mover) {
        std::vector<Trip*> back;
        base::Fifo<engine::Move> moves = mover.reap();
        while (engine::Move* move = moves.pop_front()) {
            auto* trip = static_cast<Trip*>(move->owner);
            EXPECT_FALSE(trip->back) << "a move came back twice";
            trip->back = true;
            back.push_back(trip);
        }
        return back;
    }
    void run(Trip& trip) {
        mover_->start(trip.move);
        wait_for(trip);
    }
    void wait_for(Trip& trip) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!trip.back) {
            ASSERT_LT(std::chrono::steady_clock::now(), end) << "a move never came back";
            static_cast<void>(reap(*mover_));
            std::this_thread::sleep_for(std::chrono::microseconds(5));
        }
    }
    [[nodiscard]] std::vector<std::byte> random_bytes(std::uint64_t bytes) {
        std::vector<std::byte> made(bytes);
        for (std::uint64_t i = 0; i < bytes; ++i) {
            if (i % 8 == 0) {
                bits_ = random_();
            }
            made[i] = static_cast<std::byte>(bits_ >> i % 8 * 8);
        }
        return made;
    }

    static inline const base::SteadyClock kSteadyClock;

    std::mt19937_64 random_{17};
    std::uint64_t bits_ = 0;
    base::VirtualClock clock_;
    memory::Block block_;  // outlives the mover, as the clock does
    std::unique_ptr<GpuMover> mover_;
};

}  // namespace penstock::device
