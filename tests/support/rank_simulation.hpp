// SPDX-License-Identifier: Apache-2.0
// Ranks that take turns, on fake disks under a virtual clock. Each is a thread, and only one runs
// at a time: at each operation of a disk, and each message, a seed chooses who goes on. So a run
// with its kills, stops, late ranks and faults replays from its seed.
//
//   killed    from some turn on nothing that it does has an effect, and nobody hears it; of rank 0
//             the mailbox goes, too, as a TCPStore does
//   stopped   gets no turn until all others have ended, then goes on
//   late      begins after a time
#pragma once

#include "support/crash_harness.hpp"

#include <penstock/ranks.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace penstock::test {

struct RankEvent {
    enum class Kind : std::uint8_t { kNone, kKilled, kStopped, kLate, kFault };
    Kind kind = Kind::kNone;
    std::uint32_t rank = 0;
    std::uint64_t turn = 0;  ///< of that rank
    std::chrono::nanoseconds late{0};
    int system_errno = 0;  ///< kFault: of one operation
};

struct RankResult {
    bool ended = false;
    bool killed = false;
    std::string error;  ///< empty: it succeeded
    [[nodiscard]] bool saved() const { return ended && !killed && error.empty(); }
    [[nodiscard]] bool failed() const { return ended && !killed && !error.empty(); }
};

class RankSimulation {
public:
    RankSimulation(CrashRig& rig, std::uint32_t count, std::uint64_t seed);
    RankSimulation(const RankSimulation&) = delete;
    RankSimulation& operator=(const RankSimulation&) = delete;
    ~RankSimulation();

    void add(const RankEvent& event) { events_.push_back(event); }
    /// The rename by which a rank ends a save of rank 0 does nothing: it only looks.
    void survivors_only_look() { only_look_ = true; }
    /// Each message is there some time after it was sent, up to this; its rank waits for that.
    void delay_messages(std::chrono::nanoseconds longest) { delay_ = longest; }
    /// Keeps a fork of the disks from before this operation of all of them.
    void cut_power_at(std::uint64_t operation) { cut_at_ = operation; }
    /// Runs `work` on each rank until all have ended.
    void run(const std::function<void(const Ranks&)>& work);

    [[nodiscard]] const std::vector<RankResult>& results() const { return results_; }
    /// The disks at the cut, and the ranks that had returned by then.
    [[nodiscard]] const std::optional<Disks>& cut() const { return cut_; }
    [[nodiscard]] const std::vector<RankResult>& results_at_cut() const { return at_cut_; }
    [[nodiscard]] std::uint64_t operations() const { return operations_; }
    [[nodiscard]] std::uint64_t turns(std::uint32_t rank) const { return seats_[rank].turns; }
    [[nodiscard]] std::size_t keys() const { return values_.size(); }

private:
    class Box;
    struct Seat {  // a rank
        std::condition_variable turn_comes;
        std::uint64_t turns = 0;
        bool ended = false;
        bool stopped = false;
        bool killed = false;
        std::string waits_for;  ///< a key, or empty
        std::chrono::nanoseconds until{0};
        bool waits = false;
    };

    void at_operation();
    [[nodiscard]] int fault_of(const simulation::DiskOperation& operation);
    void take_turn(std::unique_lock<std::mutex>& lock, std::uint32_t rank);
    void strike(std::uint32_t rank);
    [[nodiscard]] bool can_go(std::uint32_t rank) const;
    void pass_on();
    void wait_for_turn(std::unique_lock<std::mutex>& lock, std::uint32_t rank);

    CrashRig& rig_;
    std::mt19937_64 random_;
    std::mutex mutex_;
    std::vector<Seat> seats_;
    std::uint32_t holder_ = 0;
    std::chrono::nanoseconds now_{0};
    std::map<std::string, std::string> values_;
    bool is_gone_ = false;  // the mailbox
    std::vector<RankEvent> events_;
    std::vector<RankResult> results_;
    std::uint64_t operations_ = 0;
    bool only_look_ = false;
    std::chrono::nanoseconds delay_{0};
    std::optional<std::uint64_t> cut_at_;
    std::optional<Disks> cut_;
    std::vector<RankResult> at_cut_;
};

}  // namespace penstock::test
