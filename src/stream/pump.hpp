// SPDX-License-Identifier: Apache-2.0
// Keeps transfers of one caller under way until all of its work is done. Everything above the
// engine that moves many bytes is a source of this one loop.
//
//   unit     one transfer, of some MiB
//   queue     units that are begun in their order; one a device, so that none waits for another
//   window   what a queue has with the engine: enough that the device never runs dry
//  own work  sums and texts, which the feeding thread makes while it would wait
//
// Units are taken in the order in which they end. Other threads that have made something ready call
// wake(). No wait polls: the end of a transfer, room in the engine (EngineOptions::transfers_max)
// and wake() each end it; the caller's progress is reported about every 100 ms.
#pragma once

#include "stream/progress_clock.hpp"

#include <penstock/engine.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace penstock::stream {

/// One transfer. Sources derive from it and add their own data.
struct PumpUnit {
    PumpUnit() = default;
    PumpUnit(const PumpUnit&) = delete;
    PumpUnit& operator=(const PumpUnit&) = delete;
    virtual ~PumpUnit() = default;

    TransferRequest request;  ///< dropped when it is submitted; `group` is the pump's
    std::uint64_t bytes = 0;
    bool may_run = false;   ///< small: may be done on the feeding thread
    std::size_t queue = 0;  ///< the pump's
};
using PumpUnitPtr = std::unique_ptr<PumpUnit>;

/// The result of own_work(), which the feeding thread calls while transfers are running.
enum class OwnWork : std::uint8_t {
    kDid,   ///< some ms of it; there may be more
    kNone,  ///< nothing now, until wake()
    kOver,  ///< nothing any more, and next() will have no further units either
};

/// A source of transfers for a pump. Every call is made on the thread of Pump::run(), and may
/// throw.
class PumpSource {
public:
    PumpSource() = default;
    PumpSource(const PumpSource&) = delete;
    PumpSource& operator=(const PumpSource&) = delete;
    virtual ~PumpSource() = default;

    /// The next unit of a queue; nothing when none is ready now. Called again after every end and
    /// every wake().
    virtual PumpUnitPtr next(std::size_t queue) = 0;
    /// Takes a finished transfer: wait() reports its error.
    virtual void ended(PumpUnitPtr unit, Transfer transfer) = 0;
    virtual OwnWork own_work() { return OwnWork::kOver; }
};

/// Limit per queue on what is with the engine. A unit larger than that runs alone.
struct PumpWindow {
    std::uint64_t bytes = 0;
    std::size_t units = 0;
};

class Pump {
public:
    /// All outlive it.
    Pump(Engine& engine, ProgressClock& progress, PumpWindow window)
        : engine_(engine), progress_(progress), window_(window) {}

    /// Runs until the source is over and all of its units have ended. Throws errors of the source,
    /// the engine and the progress; transfers in flight are then cancelled, and waited for when the
    /// pump is destroyed.
    void run(PumpSource& source, std::size_t queues);
    /// Reports that next() or own_work() has something new. Any thread, also before run().
    void wake() noexcept;

private:
    struct Queue {
        PumpUnitPtr held;  ///< there was no room for it
        std::uint64_t bytes = 0;
        std::size_t units = 0;
    };

    void feed(PumpSource& source, std::size_t number);
    bool begin(Queue& queue);
    bool take_ended(PumpSource& source, std::chrono::nanoseconds timeout);

    Engine& engine_;
    ProgressClock& progress_;
    const PumpWindow window_;
    std::atomic<std::uint32_t> wakes_{0};
    std::vector<Queue> queues_;
    std::deque<PumpUnitPtr> units_;  ///< by their number in the group, from first_ on
    std::uint64_t first_ = 0;
    bool has_run_ = false;  ///< the last unit that began is over
    TransferGroup group_;   ///< last member: its destructor waits for the transfers
};

}  // namespace penstock::stream
