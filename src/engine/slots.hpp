// SPDX-License-Identifier: Apache-2.0
// The slots of a channel for one place: large ones of a block and small ones, so that many small
// unaligned reads are not held up by a few large slots. Those of the host get their memory with the
// first use and keep it; those of a device share it with other channels, see SlotPool. And the
// movers that bring bytes between slots and memory: that of the host, and one of each device whose
// memory the channel has met, which an executor makes: a context of a GPU takes up to seconds. All
// calls on the channel's thread.
#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"
#include "engine/mover.hpp"
#include "engine/request.hpp"
#include "engine/slot_pool.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::engine {

struct SlotOptions {
    std::uint32_t large_bytes = 1 << 20;
    std::uint32_t large_count = 16;
    std::uint32_t small_bytes = 16 << 10;
    std::uint32_t small_count = 128;
};

class Slots {
public:
    /// Slots of the host.
    explicit Slots(const SlotOptions& options) : options_(options) {}
    /// Slots of a device; `poke` makes the channel call share(), then take() where it wants a slot.
    Slots(const SlotOptions& options, SlotPool& pool, const MemoryPlace& place,
          const std::function<void()>& poke);
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;
    ~Slots();

    /// nullptr when none that is large enough is free; an error when there is no memory for them.
    [[nodiscard]] base::Result<Slot*> take(std::uint32_t bytes, Mover& mover);
    void give_back(Slot& slot);
    /// Gives others what they wait for.
    void share();

private:
    struct Shelf {
        base::Fifo<Slot> free;
        std::vector<SlotChunk*> chunks;
    };
    [[nodiscard]] Shelf& shelf_of(std::uint32_t bytes) {
        return bytes <= options_.small_bytes && options_.small_count != 0 ? small_ : large_;
    }
    base::Result<void> stock(Shelf& shelf, Mover& mover);
    static void cut(Shelf& shelf, SlotChunk& chunk, std::uint32_t bytes, std::uint32_t count);
    static void withdraw(Shelf& shelf, SlotChunk& chunk);
    void return_chunk(Shelf& shelf, SlotChunk& chunk);

    SlotOptions options_;
    Shelf large_;
    Shelf small_;
    std::vector<std::unique_ptr<SlotChunk>> own_;
    SlotPool* pool_ = nullptr;
    SlotPool::Holder holder_;
};

/// The mover to memory of one place, and the slots that it moves from and to.
struct Station {
    Station(const SlotOptions& options, std::unique_ptr<Mover> its_mover)
        : slots(options), mover(std::move(its_mover)) {}
    Station(const SlotOptions& options, SlotPool& pool, const MemoryPlace& device,
            const std::function<void()>& poke, std::unique_ptr<Mover> its_mover)
        : place(device), slots(options, pool, device, poke), mover(std::move(its_mover)) {}

    MemoryPlace place;
    Slots slots;
    std::unique_ptr<Mover> mover;  ///< goes first: it has registered the memory of the slots
};

class Movers {
public:
    /// `wake` ends the channel's sleep; `poke` does too, and makes it call share_slots() and look
    /// at the parts again that wait for a device. `maker` runs what makes the mover of a device.
    /// Without a `pool` there are no devices.
    Movers(const MakeMover& make, const std::function<void()>& wake,
           const std::function<void()>& poke, const SlotOptions& slots, SlotPool* pool,
           Executor& maker);
    Movers(const Movers&) = delete;
    Movers& operator=(const Movers&) = delete;

    [[nodiscard]] Station& host() { return host_; }
    /// nullptr: it is being made, and the channel is poked when it is there. An error says why that
    /// place cannot be reached, until forget_refusals(); the next use tries again. So does a
    /// transfer of a higher `number` than those that asked before: what it hears is never older
    /// than it.
    [[nodiscard]] base::Result<Station*> at(const MemoryPlace& place, std::uint64_t number);
    /// False: at() was asked for the host's alone, so far.
    [[nodiscard]] bool met_devices() const { return met_devices_; }
    void forget_refusals() {
        if (!makings_.empty()) {
            forget_those_refused();
        }
    }

    /// Calls visit(station, move) for the moves that are through; true where there were any.
    template <typename Visit>
    bool reap(Visit visit) {
        bool any = reap(host_, visit);
        for (const auto& station : devices_) {
            any |= reap(*station, visit);
        }
        return any;
    }
    [[nodiscard]] bool ready() const;
    /// Gives other channels the slots that they wait for.
    void share_slots();
    [[nodiscard]] base::Nanos look_again() const;
    void abandon_after_fork();

private:
    template <typename Visit>
    static bool reap(Station& station, Visit visit) {
        base::Fifo<Move> moves = station.mover->reap();
        const bool any = !moves.empty();
        while (Move* move = moves.pop_front()) {
            visit(station, *move);
        }
        return any;
    }

    /// The mover of a device while it is made.
    struct Making : Job {
        Movers* movers = nullptr;
        MemoryPlace place;
        std::uint64_t number = 0;  ///< of the transfer that asked for it
        std::optional<base::Result<std::unique_ptr<Mover>>> made;
        std::atomic<bool> done{false};
    };
    static void make(Job& job) noexcept;
    [[nodiscard]] static bool refused(const Making& making);
    void forget_those_refused();

    MakeMover make_;
    std::function<void()> wake_;
    std::function<void()> poke_;
    SlotOptions slots_;
    SlotPool* pool_;
    Executor& maker_;
    Station host_;
    std::vector<std::unique_ptr<Station>> devices_;  ///< few
    std::vector<std::unique_ptr<Making>> makings_;   ///< fewer
    bool met_devices_ = false;
};

}  // namespace penstock::engine
