// SPDX-License-Identifier: Apache-2.0
#include "engine/mover.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"

#include <cstring>

namespace penstock::engine {

namespace {

// 64 KiB are copied in about 6 us; a hop to another thread and back costs about 11.
constexpr std::uint64_t kMoveHereBytesMax = 64 * base::kKiB;
// A piece of its own costs what so many bytes do: it is not in the cache.
constexpr std::uint64_t kPieceBytes = 256;

}  // namespace

void Move::copy_now() {
    const bool out = to == MoveTo::kExtents;
    bytes = for_each_piece(*this, [&](std::byte* memory, std::byte* in_slot, std::uint64_t count) {
        std::memcpy(out ? memory : in_slot, out ? in_slot : memory, count);
    });
}

base::Result<memory::Block> HostMover::slot_memory(std::uint64_t bytes) {
    return memory::Block::make(bytes, {.lasting = true});
}

void HostMover::start(Move& move) {
    const std::uint64_t cost_bytes = move.bytes + move.draft->extents * kPieceBytes;
    if (executor_ == nullptr || cost_bytes <= kMoveHereBytesMax) {
        move.copy_now();
        done_here_.push_back(move);
        return;
    }
    move.token = this;
    move.run = [](Job& job) noexcept {
        auto& self = static_cast<Move&>(job);
        HostMover& mover = *static_cast<HostMover*>(self.token);
        self.copy_now();
        mover.done_.put(self);  // from here on the move is the channel's again
        mover.wake_();
    };
    executor_->post(move);
}

base::Error HostMover::explain(const Move& /*move*/) {
    PENSTOCK_ASSERT(false);  // a copy of ours does not fail
    return {};
}

base::Fifo<Move> HostMover::reap() {
    base::Fifo<Move> out = done_.take_all();
    out.take(done_here_);
    return out;
}

}  // namespace penstock::engine
