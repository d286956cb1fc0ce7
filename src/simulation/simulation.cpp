// SPDX-License-Identifier: Apache-2.0
#include "simulation/simulation.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace penstock::simulation {

namespace {

base::Nanos duration(std::uint64_t bytes, double bytes_per_second) {
    return bytes_per_second > 0
               ? static_cast<base::Nanos>(static_cast<double>(bytes) / bytes_per_second * 1e9)
               : 0;
}

// As Move::copy_now(), where the bytes of a device's memory are.
void copy_device(engine::Move& move, std::ptrdiff_t bytes_at) {
    const bool out = move.to == engine::MoveTo::kExtents;
    move.bytes =
        engine::for_each_piece(move, [&](std::byte* memory, std::byte* slot, std::uint64_t bytes) {
            std::byte* const here = memory + bytes_at;
            std::memcpy(out ? here : slot, out ? slot : here, bytes);
        });
}

}  // namespace

base::Nanos CopyEngines::schedule(engine::Move& move, base::Nanos now) {
    move.error = model_.fault ? model_.fault(moves_, move) : 0;
    ++moves_;
    base::Nanos needs = 0;
    static_cast<void>(engine::for_each_piece(
        move, [&](std::byte* /*memory*/, std::byte* /*slot*/, std::uint64_t bytes) {
            needs += model_.copy_ns + duration(bytes, model_.bytes_per_second);
        }));
    const bool out = move.to == engine::MoveTo::kExtents && !model_.one_stream;
    base::Nanos& free = free_[out ? 1 : 0];
    free = std::max(free, now) + needs;
    return free;
}

SimulatedMover::SimulatedMover(const base::Clock& clock, const CopyModel& model, bool hollow)
    : clock_(clock), model_(model), hollow_(hollow), core_free_(model.cores) {}

SimulatedMover::SimulatedMover(const base::Clock& clock, std::shared_ptr<CopyEngines> engines,
                               bool hollow)
    : clock_(clock), model_(), engines_(std::move(engines)), hollow_(hollow) {}

base::Result<memory::Block> SimulatedMover::slot_memory(std::uint64_t bytes) {
    return memory::Block::make(bytes);
}

void SimulatedMover::start(engine::Move& move) {
    if (engines_) {
        due_.push_back({engines_->schedule(move, clock_.now()), &move});
        return;
    }
    const auto core = std::min_element(core_free_.begin(), core_free_.end());
    *core = std::max(*core, clock_.now()) + duration(move.bytes, model_.bytes_per_second);
    due_.push_back({*core, &move});
}

base::Fifo<engine::Move> SimulatedMover::reap() {
    base::Fifo<engine::Move> done;
    for (auto it = due_.begin(); it != due_.end();) {
        if (it->when > clock_.now()) {
            ++it;
            continue;
        }
        if (!hollow_ && engines_ && it->move->error == 0) {
            copy_device(*it->move, engines_->model().bytes_at);
        } else if (!hollow_ && !engines_) {
            it->move->copy_now();
        }
        done.push_back(*it->move);
        it = due_.erase(it);
    }
    return done;
}

base::Error SimulatedMover::explain(const engine::Move& move) {
    return base::error(ErrorCode::kSystem, "copy", fmt::format("simulated fault {}", move.error));
}

bool SimulatedMover::ready() const {
    return next_event() <= clock_.now();
}

base::Nanos SimulatedMover::next_event() const {
    base::Nanos next = base::kForever;
    for (const Due& due : due_) {
        next = std::min(next, due.when);
    }
    return next;
}

Simulation::Simulation(const SimulationOptions& options)
    : clock_(std::make_shared<base::VirtualClock>()) {
    for (const DeviceModel& device : options.devices) {
        devices_.push_back(std::make_shared<CopyEngines>(device));
    }
    for (std::uint32_t i = 0; i < options.disks; ++i) {
        disks_.push_back(std::make_shared<FakeDisk>(DeviceId{240, i}, options.shape, options.model,
                                                    options.seed + i));
    }
    engine::Platform platform;
    platform.file_system = std::make_shared<FakeFileSystem>(disks_, clock_);
    platform.clock = clock_;
    // The first backend is only made to test whether it is available, and is destroyed again: it is
    // not listened to.
    auto probing = std::make_shared<bool>(true);
    platform.backends = {{"fake",
                          [this, probing](const engine::BackendOptions& backend_options)
                              -> base::Result<std::unique_ptr<engine::Backend>> {
                              auto backend =
                                  std::make_unique<FakeBackend>(backend_options, clock_, true);
                              if (!std::exchange(*probing, false)) {
                                  events_.push_back(backend.get());
                              }
                              return backend;
                          }}};
    platform.make_mover = [this, options](const engine::MemoryPlace& place,
                                          const std::function<void()>& /*wake*/) {
        return make_mover(place, options.copy, options.shape.hollow);
    };
    platform.make_order = [](auto /*streams*/, auto /*devices*/) {
        return base::Result<std::shared_ptr<const engine::MoveOrder>>();  // nothing to wait for
    };
    engine::CoreOptions core_options = options.core;
    core_options.domain.threads = false;
    auto core = engine::Core::make(core_options, std::move(platform));
    PENSTOCK_ASSERT(core);
    core_ = std::move(*core);
}

base::Result<std::unique_ptr<engine::Mover>> Simulation::make_mover(
    const engine::MemoryPlace& place, const CopyModel& copy, bool hollow) {
    std::unique_ptr<SimulatedMover> mover;
    if (place.kind == MemoryKind::kHost) {
        mover = std::make_unique<SimulatedMover>(*clock_, copy, hollow);
    } else if (static_cast<std::size_t>(place.device) < devices_.size()) {
        mover = std::make_unique<SimulatedMover>(
            *clock_, devices_[static_cast<std::size_t>(place.device)], hollow);
    } else {
        return base::fail(base::error(ErrorCode::kUnsupported, "reach a device",
                                      fmt::format("there is no device {} here; there are {}",
                                                  place.device, devices_.size())));
    }
    events_.push_back(mover.get());
    return mover;
}

Simulation::~Simulation() {
    const bool idle = run_until([this] { return core_->running() == 0; });
    PENSTOCK_ASSERT(idle);  // otherwise a transfer hangs, and so would the core's destructor
}

bool Simulation::turn_all() {
    std::vector<engine::Domain*> domains;
    core_->for_each_domain([&](engine::Domain& domain) { domains.push_back(&domain); });
    bool moved = false;
    for (engine::Domain* domain : domains) {
        for (std::uint32_t i = 0; i < domain->channel_count(); ++i) {
            moved |= domain->channel(i).turn(false);
        }
    }
    return moved;
}

bool Simulation::step() {
    if (turn_all()) {
        return true;
    }
    base::Nanos next = base::kForever;
    for (const EventSource* source : events_) {
        next = std::min(next, source->next_event());
    }
    core_->for_each_domain([&](engine::Domain& domain) {
        for (std::uint32_t i = 0; i < domain.channel_count(); ++i) {
            next = std::min(next, domain.channel(i).next_try());
        }
    });
    if (next == base::kForever) {
        return false;
    }
    clock_->advance_to(next);
    return true;
}

bool Simulation::run_until(const std::function<bool()>& done) {
    while (!done()) {
        if (!step()) {
            return done();
        }
    }
    return true;
}

bool Simulation::run(const engine::Transfer& transfer) {
    return run_until([&] { return transfer.finished(); });
}

}  // namespace penstock::simulation
