// SPDX-License-Identifier: Apache-2.0
// A mover brings bytes between a slot and the caller's memory: memcpy for the host; a copy engine
// for a GPU. It also says where slots live, for a copy engine wants them pinned.
#pragma once

#include "base/clock.hpp"
#include "base/intrusive.hpp"
#include "base/result.hpp"
#include "engine/extents.hpp"
#include "engine/job.hpp"
#include "engine/request.hpp"
#include "memory/block.hpp"

#include <cstdint>
#include <functional>

namespace penstock::engine {

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
    class HostMover* mover = nullptr;

    void copy_now();
};

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
};

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

private:
    Executor* executor_;
    Wake wake_;
    base::Fifo<Move> done_here_;
    base::Inbox<Move> done_;
};

}  // namespace penstock::engine
