// SPDX-License-Identifier: Apache-2.0
// An engine on fake disks under a virtual clock, in one thread: the same plan, channels and
// transfers, turned by hand. A seed replays the same trace; time is counted, not measured.
#pragma once

#include "base/clock.hpp"
#include "engine/core.hpp"
#include "simulation/fake_backend.hpp"
#include "simulation/fake_disk.hpp"
#include "simulation/fake_file_system.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::simulation {

/// Models copies, which take time on one of a few cores.
struct CopyModel {
    std::uint32_t cores = 2;
    double bytes_per_second = 10e9;  ///< of one core; 0: no time
};

class SimulatedMover final : public engine::Mover, public EventSource {
public:
    /// `hollow`: time passes, but no byte is touched.
    SimulatedMover(const base::Clock& clock, const CopyModel& model, bool hollow);

    [[nodiscard]] base::Result<memory::Block> slot_memory(std::uint64_t bytes) override;
    void start(engine::Move& move) override;
    [[nodiscard]] base::Fifo<engine::Move> reap() override;
    [[nodiscard]] bool ready() const override;
    [[nodiscard]] base::Nanos look_again() const override { return base::kForever; }
    [[nodiscard]] base::Nanos next_event() const override;

private:
    struct Due {
        base::Nanos when;
        engine::Move* move;
    };
    const base::Clock& clock_;
    const CopyModel model_;
    const bool hollow_;
    std::vector<base::Nanos> core_free_;
    std::vector<Due> due_;
};

struct SimulationOptions {
    engine::CoreOptions core;
    std::uint32_t disks = 1;
    DiskShape shape;
    DiskModel model;
    CopyModel copy;
    std::uint64_t seed = 1;
};

class Simulation {
public:
    explicit Simulation(const SimulationOptions& options);
    Simulation(const Simulation&) = delete;
    Simulation& operator=(const Simulation&) = delete;
    ~Simulation();

    [[nodiscard]] engine::Core& core() { return *core_; }
    [[nodiscard]] FakeDisk& disk(std::size_t index = 0) { return *disks_.at(index); }
    [[nodiscard]] os::FileSystem& file_system() { return core_->file_system(); }
    [[nodiscard]] base::Nanos now() const { return clock_->now(); }

    /// Turns every channel once; when none advanced, moves the clock to the next event. False when
    /// no event is left: nothing will ever happen again.
    bool step();
    /// Steps until `done`; false when nothing happens any more before that (a hang).
    [[nodiscard]] bool run_until(const std::function<bool()>& done);
    [[nodiscard]] bool run(const engine::Transfer& transfer);

private:
    bool turn_all();

    std::shared_ptr<base::VirtualClock> clock_;
    std::vector<std::shared_ptr<FakeDisk>> disks_;
    std::vector<EventSource*> events_;
    std::shared_ptr<engine::Core> core_;
};

}  // namespace penstock::simulation
