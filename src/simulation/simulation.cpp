// SPDX-License-Identifier: Apache-2.0
#include "simulation/simulation.hpp"

#include "base/assert.hpp"

#include <algorithm>

namespace penstock::simulation {

SimulatedMover::SimulatedMover(const base::Clock& clock, const CopyModel& model, bool hollow)
    : clock_(clock), model_(model), hollow_(hollow), core_free_(model.cores) {}

base::Result<memory::Block> SimulatedMover::slot_memory(std::uint64_t bytes) {
    return memory::Block::make(bytes);
}

void SimulatedMover::start(engine::Move& move) {
    const auto core = std::min_element(core_free_.begin(), core_free_.end());
    const double seconds =
        model_.bytes_per_second > 0 ? static_cast<double>(move.bytes) / model_.bytes_per_second : 0;
    *core = std::max(*core, clock_.now()) + static_cast<base::Nanos>(seconds * 1e9);
    due_.push_back({*core, &move});
}

base::Fifo<engine::Move> SimulatedMover::reap() {
    base::Fifo<engine::Move> done;
    for (auto it = due_.begin(); it != due_.end();) {
        if (it->when > clock_.now()) {
            ++it;
            continue;
        }
        if (!hollow_) {
            it->move->copy_now();
        }
        done.push_back(*it->move);
        it = due_.erase(it);
    }
    return done;
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
    platform.make_mover = [this, options](const std::function<void()>& /*wake*/) {
        auto mover = std::make_unique<SimulatedMover>(*clock_, options.copy, options.shape.hollow);
        events_.push_back(mover.get());
        return mover;
    };
    engine::CoreOptions core_options = options.core;
    core_options.domain.threads = false;
    auto core = engine::Core::make(core_options, std::move(platform));
    PENSTOCK_ASSERT(core);
    core_ = std::move(*core);
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
