// SPDX-License-Identifier: Apache-2.0
// Simulates a row cache: the reads that it would save for the rows that a run gathers. It runs the
// policies of the cache itself, and bounds to compare them with. Nothing is read.
//
//     penstock::RowTrace trace;
//     trace.add(batch);  // each batch
//     const penstock::RowSimulator simulator(trace);
//     const auto window = simulator.run("window", {.slots = 100'000});
//     const auto bound = simulator.run("belady", {.slots = 100'000});
#pragma once

#include <penstock/engine.hpp>
#include <penstock/error.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The rows of several batches.
struct PENSTOCK_API RowTrace {
    std::vector<std::uint64_t> ids;
    std::vector<std::uint64_t> ends;  ///< batch i ends before ids[ends[i]]

    void add(std::span<const std::uint64_t> batch);
    [[nodiscard]] std::span<const std::uint64_t> batch(std::uint64_t i) const;
};

struct RowSimulationOptions {
    std::uint64_t slots = 0;    ///< rows that the cache has room for; at most 2^30
    std::uint32_t window = 8;   ///< batches that are hinted ahead, 0 to 30; only for "window"
    std::uint64_t warm_up = 0;  ///< batches at the beginning that are not counted
    /// Rows that are in memory before the first batch, the most used first; as many as fit.
    std::span<const std::uint64_t> hot = {};
};

/// The result of a simulation. A row that is repeated in a batch counts once.
struct RowSimulation {
    std::uint64_t batches = 0;    ///< counted batches
    std::uint64_t rows = 0;       ///< rows of these batches
    std::uint64_t rows_read = 0;  ///< rows of these that were not in memory
    std::uint64_t preloaded = 0;  ///< rows that were read before the first batch
    [[nodiscard]] double hit_rate() const {
        return rows == 0 ? 0 : 1 - static_cast<double>(rows_read) / static_cast<double>(rows);
    }
};

/// The policies of RowSimulator. Those of RowPolicy are run by the cache itself, in sets. In the
/// others any row can be in any slot: "fifo" (evicts the oldest), "lru", "s3fifo_whole" (Yang et
/// al., SOSP 2023) and "belady". "belady" evicts the row whose next use is the latest, and does not
/// keep a row that is used later than all others. No policy reads fewer rows than that ("A study of
/// replacement algorithms for a virtual-storage computer", 1966), unless rows are preloaded.
[[nodiscard]] PENSTOCK_API std::span<const std::string_view> row_simulation_policies() noexcept;

/// Runs policies over one trace. Only the constructor reads the trace. Copies share its internal
/// form: 12 bytes for each id, and 8 more for each row. Thread-safe.
class PENSTOCK_API RowSimulator {
public:
    /// Throws Error: kInvalidArgument for a trace whose `ends` are not in order, and for 2^32
    /// different rows.
    explicit RowSimulator(const RowTrace& trace);
    /// Throws Error: kInvalidArgument for an unknown policy, for more than 2^30 slots, and for a
    /// window above 30. Only computes.
    [[nodiscard]] RowSimulation run(std::string_view policy,
                                    const RowSimulationOptions& options) const;

private:
    struct Impl;
    std::shared_ptr<const Impl> impl_;
};

/// Reads a trace. A .npy file has ids of int32, int64, uint32 or uint64. With two dimensions each
/// row is a batch. With one dimension each `batch` ids are a batch; the last one may be shorter. In
/// any other file each batch is the number of its ids, and then the ids, all as little-endian
/// integers of 64 bits. Throws Error: kInvalidArgument for a file in neither form (a number that
/// exceeds the file, a negative id), and for ids in one dimension without `batch`; errors of
/// reading. Any thread; blocks.
[[nodiscard]] PENSTOCK_API RowTrace read_row_trace(Engine& engine, const std::string& path,
                                                   std::uint64_t batch = 0);

}  // namespace penstock
