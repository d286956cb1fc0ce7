// SPDX-License-Identifier: Apache-2.0
// A mover brings bytes between a slot and the caller's memory of one place: memcpy for the host; a
// copy engine for a GPU. It also says where slots live, for a copy engine wants them pinned.
#pragma once

#include "base/clock.hpp"
#include "base/intrusive.hpp"
#include "base/result.hpp"
#include "engine/extents.hpp"
#include "engine/job.hpp"
#include "engine/request.hpp"
#include "memory/block.hpp"

#include <penstock/types.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace penstock::engine {

/// The work that a transfer begins after: that of the caller's streams when he asked. Made by the
/// room that knows streams, kept by the transfer.
class MoveOrder {
public:
    virtual ~MoveOrder() = default;
    /// Whether that work is done; once it is, for good. An error ends the transfer. Never waits.
    /// Any thread.
    [[nodiscard]] virtual base::Result<bool> passed() const = 0;
};

enum class MoveTo : std::uint8_t { kExtents, kSlot };

/// One move; lives in its request.
struct Move : Job {
    base::Link<Move> link;
    MoveTo to = MoveTo::kExtents;
    void* owner = nullptr;  ///< given by its starter
    const Extents* extents = nullptr;
    const Draft* draft = nullptr;
    std::byte* slot = nullptr;  ///< from the first wanted byte on
    std::uint64_t bytes = 0;    ///< there; once it is through, those that were copied
    int error = 0;              ///< once it is through: not 0, and no byte is right
    void* token = nullptr;      ///< the mover's own

    void copy_now();
};

/// Calls visit(memory, slot, bytes) for each piece of the caller's memory of a move, and returns
/// how many bytes they have.
template <typename Visit>
std::uint64_t for_each_piece(const Move& move, Visit visit) {
    if (move.to == MoveTo::kExtents && move.draft->extents != 0) {
        return for_each_piece_over_gaps(
            *move.extents, *move.draft, move.bytes,
            [&](std::byte* memory, std::uint64_t begin, std::uint64_t bytes) {
                visit(memory, move.slot + begin, bytes);
            });
    }
    std::byte* slot = move.slot;
    for_each_piece(*move.extents, move.draft->at, move.bytes,
                   [&](std::byte* memory, std::uint64_t bytes) {
                       visit(memory, slot, bytes);
                       slot += bytes;
                   });
    return move.bytes;
}

/// Makes the order of a transfer to or from these devices; nullptr: there is nothing to wait for.
/// `streams`: those of the caller; none: the default stream of each device.
using MakeOrder = std::function<base::Result<std::shared_ptr<const MoveOrder>>(
    std::span<const StreamHandle> streams, std::span<const MemoryPlace> devices)>;

/// All calls on the channel's thread.
class Mover {
public:
    virtual ~Mover() = default;
    /// Memory for slots, page-aligned.
    [[nodiscard]] virtual base::Result<memory::Block> slot_memory(std::uint64_t bytes) = 0;
    virtual void start(Move& move) = 0;
    /// The moves that are through, in any order.
    [[nodiscard]] virtual base::Fifo<Move> reap() = 0;
    /// Has reap() something to give?
    [[nodiscard]] virtual bool ready() const = 0;
    /// While moves are out: look again after so many nanoseconds; kForever when it wakes the
    /// channel.
    [[nodiscard]] virtual base::Nanos look_again() const = 0;
    /// The `error` of a move, in words.
    [[nodiscard]] virtual base::Error explain(const Move& move) = 0;
    /// After fork(), in the child: forget what belongs to the parent, without touching it.
    virtual void abandon_after_fork() {}
};

/// Makes the mover of a place, or says why it cannot be had here; nullptr: memcpy on the threads of
/// the domain, for the host. For a device on any thread: it may take seconds. `wake` ends a
/// channel's sleep, from any thread.
using MakeMover = std::function<base::Result<std::unique_ptr<Mover>>(const MemoryPlace& place,
                                                                     std::function<void()> wake)>;

/// memcpy: small moves on the channel's thread (a hop to another costs more than they do), larger
/// ones on an executor, so that one core's copy does not cap a drive.
class HostMover final : public Mover {
public:
    using Wake = std::function<void()>;
    /// Without an executor everything is copied on the calling thread.
    HostMover(Executor* executor, Wake wake) : executor_(executor), wake_(std::move(wake)) {}

    [[nodiscard]] base::Result<memory::Block> slot_memory(std::uint64_t bytes) override;
    void start(Move& move) override;
    [[nodiscard]] base::Fifo<Move> reap() override;
    [[nodiscard]] bool ready() const override { return !done_here_.empty() || !done_.empty(); }
    [[nodiscard]] base::Nanos look_again() const override { return base::kForever; }
    [[nodiscard]] base::Error explain(const Move& move) override;

private:
    Executor* executor_;
    Wake wake_;
    base::Fifo<Move> done_here_;
    base::Inbox<Move> done_;
};

}  // namespace penstock::engine
