// SPDX-License-Identifier: Apache-2.0
// An engine on fake disks under a virtual clock, in one thread: the same plan, channels and
// transfers, turned by hand. A seed replays the same trace; time is counted, not measured.
#pragma once

#include "base/clock.hpp"
#include "engine/core.hpp"
#include "simulation/fake_backend.hpp"
#include "simulation/fake_disk.hpp"
#include "simulation/fake_file_system.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::simulation {

/// Models copies of the host, which take time on one of a few cores.
struct CopyModel {
    std::uint32_t cores = 2;
    double bytes_per_second = 10e9;  ///< of one core; 0: no time
};

/// Models a device with memory of its own.
struct DeviceModel {
    double bytes_per_second = 25e9;  ///< of a copy engine; 0: no time
    base::Nanos copy_ns = 10'000;    ///< of each copy, before its bytes
    bool one_stream = false;         ///< copies in and out of the device wait for one another
    /// Added to an address of the device by copies alone, which gives where its bytes are: so that
    /// all others who touch such an address are found out.
    std::ptrdiff_t bytes_at = 0;
    /// The error of copy number `index` of the device, or 0. Called before it begins.
    std::function<int(std::uint64_t index, const engine::Move& move)> fault = {};
};

/// The two copy engines of a device, one a direction, which the movers of all channels share.
class CopyEngines {
public:
    explicit CopyEngines(DeviceModel model) : model_(std::move(model)) {}
    [[nodiscard]] const DeviceModel& model() const { return model_; }
    /// The time at which a move that starts at `now` is through; sets its error.
    [[nodiscard]] base::Nanos schedule(engine::Move& move, base::Nanos now);

private:
    const DeviceModel model_;
    std::array<base::Nanos, 2> free_{};
    std::uint64_t moves_ = 0;
};

class SimulatedMover final : public engine::Mover, public EventSource {
public:
    /// `hollow`: time passes, but no byte is touched.
    SimulatedMover(const base::Clock& clock, const CopyModel& model, bool hollow);
    /// The mover of a device.
    SimulatedMover(const base::Clock& clock, std::shared_ptr<CopyEngines> engines, bool hollow);

    [[nodiscard]] base::Result<memory::Block> slot_memory(std::uint64_t bytes) override;
    void start(engine::Move& move) override;
    [[nodiscard]] base::Fifo<engine::Move> reap() override;
    [[nodiscard]] bool ready() const override;
    [[nodiscard]] base::Nanos look_again() const override { return base::kForever; }
    [[nodiscard]] base::Error explain(const engine::Move& move) override;
    [[nodiscard]] base::Nanos next_event() const override;

private:
    struct Due {
        base::Nanos when;
        engine::Move* move;
    };
    const base::Clock& clock_;
    const CopyModel model_;
    const std::shared_ptr<CopyEngines> engines_;  ///< of a device
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
    std::vector<DeviceModel> devices;  ///< number 0 and on
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
    [[nodiscard]] base::Result<std::unique_ptr<engine::Mover>> make_mover(
        const engine::MemoryPlace& place, const CopyModel& copy, bool hollow);

    std::shared_ptr<base::VirtualClock> clock_;
    std::vector<std::shared_ptr<FakeDisk>> disks_;
    std::vector<std::shared_ptr<CopyEngines>> devices_;
    std::vector<EventSource*> events_;
    std::shared_ptr<engine::Core> core_;
};

}  // namespace penstock::simulation
