// SPDX-License-Identifier: Apache-2.0
// The simulator's disk as the bars have it, and what the jobs on it share.
#pragma once

#include "common.hpp"
#include "simulation/simulation.hpp"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

namespace penstock::benchmarks {

inline constexpr base::Nanos kRequestNs = 100'000;
inline constexpr std::uint32_t kLanes = 32;
inline constexpr double kBytesPerSecond = 7e9;

/// Addresses without memory behind them: a hollow disk touches none.
class Addresses {
public:
    explicit Addresses(std::uint64_t bytes);
    Addresses(const Addresses&) = delete;
    Addresses& operator=(const Addresses&) = delete;
    ~Addresses();
    [[nodiscard]] std::byte* at(std::uint64_t offset = 0) const {
        return static_cast<std::byte*>(start_) + offset;
    }

private:
    std::uint64_t bytes_;
    void* start_;
};

template <typename T>
T value_of(base::Result<T> result) {
    if (!result) {
        throw std::runtime_error(result.error().message);
    }
    return std::move(*result);
}

/// A hollow disk (100 us a request, 32 at once, 7 GB/s) under an engine with its defaults; knows
/// the handicap `depth1`.
[[nodiscard]] simulation::SimulationOptions simulation_options(const Arguments& arguments);
/// The minimum time of one disk: limited by its pipe, or its lanes.
[[nodiscard]] double bound_ns(std::uint64_t bytes, std::uint64_t requests);

/// Throws where the transfer fails or hangs.
void run_to_its_end(simulation::Simulation& simulation, engine::TransferSpec spec);

// ---- jobs in files of their own
void checkpoint_save(const Arguments& arguments, Figures& figures);
void checkpoint_readback(const Arguments& arguments, Figures& figures);
/// Wrong bytes after `count` frees in random order of what loads have. Handicap
/// `direct_neighbours`: pages go when both neighbours of a part are gone.
void pages(const Arguments& arguments, Figures& figures);

}  // namespace penstock::benchmarks
