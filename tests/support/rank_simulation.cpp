// SPDX-License-Identifier: Apache-2.0
#include "support/rank_simulation.hpp"

#include "base/random.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <stdexcept>
#include <utility>

namespace penstock::test {

namespace {

using std::chrono::nanoseconds;

// The rank that this thread is, in the simulation that runs; threads of the engine are none.
thread_local std::optional<std::uint32_t> this_rank;

}  // namespace

class RankSimulation::Box final : public Mailbox {
public:
    explicit Box(RankSimulation& world) : world_(world) {}

    void put(const std::string& key, std::string_view value) override {
        std::unique_lock lock(world_.mutex_);
        Seat& seat = world_.seats_[*this_rank];
        if (world_.delay_ > nanoseconds::zero()) {
            seat.waits = true;
            seat.waits_for.clear();
            seat.until = world_.now_ +
                         nanoseconds(static_cast<std::int64_t>(
                             world_.random_() % static_cast<std::uint64_t>(world_.delay_.count())));
        }
        world_.take_turn(lock, *this_rank);
        seat.waits = false;
        check();
        world_.values_.insert_or_assign(key, std::string(value));
    }
    std::optional<std::string> get(const std::string& key, nanoseconds timeout) override {
        std::unique_lock lock(world_.mutex_);
        Seat& seat = world_.seats_[*this_rank];
        seat.waits = timeout > nanoseconds::zero();
        seat.waits_for = key;
        seat.until = world_.now_ + timeout;
        world_.take_turn(lock, *this_rank);
        seat.waits = false;
        check();
        const auto found = world_.values_.find(key);
        return found == world_.values_.end() ? std::nullopt : std::optional(found->second);
    }
    void erase(const std::string& key) override {
        std::unique_lock lock(world_.mutex_);
        world_.take_turn(lock, *this_rank);
        check();
        world_.values_.erase(key);
    }

private:
    void check() const {
        if (world_.is_gone_ || world_.seats_[*this_rank].killed) {
            throw std::runtime_error("connection reset");
        }
    }
    RankSimulation& world_;
};

RankSimulation::RankSimulation(CrashRig& rig, std::uint32_t count, std::uint64_t seed)
    : rig_(rig), random_(seed), seats_(count), results_(count) {
    for (const auto& disk : rig_.disks()) {
        disk->set_watch([this](const simulation::DiskOperation&) { at_operation(); });
        disk->set_operation_faults(
            [this](const simulation::DiskOperation& operation) { return fault_of(operation); });
    }
}

RankSimulation::~RankSimulation() {
    for (const auto& disk : rig_.disks()) {
        disk->set_watch({});
        disk->set_operation_faults({});
    }
}

// The turn passes on before an operation, so others come between any two of them.
void RankSimulation::at_operation() {
    if (!this_rank) {
        return;
    }
    std::unique_lock lock(mutex_);
    take_turn(lock, *this_rank);
    const bool cuts = cut_at_ && operations_ == *cut_at_ && !seats_[*this_rank].killed;
    if (cuts) {  // without the lock, which a disk takes under its own; nobody else has the turn
        lock.unlock();
        Disks disks = CrashRig::killed(rig_.disks());
        lock.lock();
        cut_ = std::move(disks);
        at_cut_ = results_;
    }
    ++operations_;
}

int RankSimulation::fault_of(const simulation::DiskOperation& operation) {
    if (!this_rank) {
        return 0;
    }
    const std::lock_guard lock(mutex_);
    if (seats_[*this_rank].killed) {
        return EIO;
    }
    if (only_look_ && *this_rank != 0 && operation.call == simulation::DiskCall::kRename) {
        return ENOENT;
    }
    for (RankEvent& event : events_) {
        if (event.kind == RankEvent::Kind::kFault && event.rank == *this_rank &&
            seats_[*this_rank].turns >= event.turn) {
            event.kind = RankEvent::Kind::kNone;
            return event.system_errno;
        }
    }
    return 0;
}

void RankSimulation::strike(std::uint32_t rank) {
    Seat& seat = seats_[rank];
    for (RankEvent& event : events_) {
        if (event.rank != rank || seat.turns < event.turn) {
            continue;
        }
        switch (event.kind) {
            case RankEvent::Kind::kKilled:
                seat.killed = true;
                results_[rank].killed = true;
                is_gone_ = is_gone_ || rank == 0;
                break;
            case RankEvent::Kind::kStopped:
                seat.stopped = true;
                break;
            case RankEvent::Kind::kLate:
                seat.waits = true;
                seat.waits_for.clear();
                seat.until = now_ + event.late;
                break;
            default:
                continue;
        }
        event.kind = RankEvent::Kind::kNone;
    }
}

bool RankSimulation::can_go(std::uint32_t rank) const {
    const Seat& seat = seats_[rank];
    if (seat.ended || seat.stopped) {
        return false;
    }
    return !seat.waits || seat.killed || is_gone_ || seat.until <= now_ ||
           (!seat.waits_for.empty() && values_.contains(seat.waits_for));
}

// Chooses who goes on. Time passes only when nobody can go; those that were stopped go on when the
// others have ended.
void RankSimulation::pass_on() {
    for (;;) {
        std::vector<std::uint32_t> able;
        nanoseconds next = nanoseconds::max();
        bool any_left = false;
        for (std::uint32_t rank = 0; rank < seats_.size(); ++rank) {
            if (can_go(rank)) {
                able.push_back(rank);
            } else if (!seats_[rank].ended) {
                any_left = true;
                next = seats_[rank].stopped ? next : std::min(next, seats_[rank].until);
            }
        }
        if (!able.empty()) {
            holder_ = able[random_() % able.size()];
            seats_[holder_].turn_comes.notify_one();
            return;
        }
        if (!any_left) {
            holder_ = static_cast<std::uint32_t>(seats_.size());
            return;
        }
        if (next != nanoseconds::max()) {
            now_ = next;
            continue;
        }
        for (Seat& seat : seats_) {
            seat.stopped = false;
        }
    }
}

void RankSimulation::wait_for_turn(std::unique_lock<std::mutex>& lock, std::uint32_t rank) {
    seats_[rank].turn_comes.wait(lock, [&] { return holder_ == rank; });
}

void RankSimulation::take_turn(std::unique_lock<std::mutex>& lock, std::uint32_t rank) {
    ++seats_[rank].turns;
    strike(rank);
    pass_on();
    wait_for_turn(lock, rank);
}

void RankSimulation::run(const std::function<void(const Ranks&)>& work) {
    const auto mailbox = std::make_shared<Box>(*this);
    std::vector<std::thread> threads;
    const auto count = static_cast<std::uint32_t>(seats_.size());
    holder_ = count;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
        threads.emplace_back([&, rank] {
            const base::SeededRandom seeded(rank + 1);
            this_rank = rank;
            {
                std::unique_lock lock(mutex_);
                wait_for_turn(lock, rank);
                take_turn(lock, rank);
            }
            std::string error;
            try {
                work(Ranks(rank, count, "host" + std::to_string(rank), mailbox));
            } catch (const std::exception& failed) {
                error = failed.what();
            }
            const std::lock_guard lock(mutex_);
            results_[rank].ended = true;
            results_[rank].error = std::move(error);
            seats_[rank].ended = true;
            pass_on();
        });
    }
    {
        const std::lock_guard lock(mutex_);
        pass_on();
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

}  // namespace penstock::test
