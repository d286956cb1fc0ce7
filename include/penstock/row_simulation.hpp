// SPDX-License-Identifier: Apache-2.0
// What a cache of rows would save, by the rows that a run gathers: the policies of the cache
// itself, and bounds to hold them against. Nothing is read.
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

/// The rows of batches, one after the other.
struct PENSTOCK_API RowTrace {
    std::vector<std::uint64_t> ids;
    std::vector<std::uint64_t> ends;  ///< batch i ends before ids[ends[i]]

    void add(std::span<const std::uint64_t> batch);
    [[nodiscard]] std::span<const std::uint64_t> batch(std::uint64_t i) const;
};

struct RowSimulationOptions {
    std::uint64_t slots = 0;    ///< rows that the cache has room for; at most 2^30
    std::uint32_t window = 8;   ///< batches that are hinted ahead, 0 to 30; "window" alone
    std::uint64_t warm_up = 0;  ///< batches at the beginning that are not counted
    /// Rows that are in memory before the first batch, the most used first: as many as fit.
    std::span<const std::uint64_t> hot = {};
};

/// A row that a batch has several times counts once.
struct RowSimulation {
    std::uint64_t batches = 0;    ///< that were counted
    std::uint64_t rows = 0;       ///< that they wanted
    std::uint64_t rows_read = 0;  ///< of these, those that were not in memory
    std::uint64_t preloaded = 0;  ///< rows that were read before the first batch
    [[nodiscard]] double hit_rate() const {
        return rows == 0 ? 0 : 1 - static_cast<double>(rows_read) / static_cast<double>(rows);
    }
};

/// The policies that RowSimulator knows: those of RowPolicy, run by the cache itself, in sets;
/// and, each with any row in any slot, "fifo" (the oldest gives way), "lru", "s3fifo_whole" (Yang
/// et al., SOSP 2023) and "belady": the row whose next use is the farthest gives way, and one that
/// comes later than all others is not kept. No policy reads fewer rows than that ("A study of
/// replacement algorithms for a virtual-storage computer", 1966), unless rows are preloaded.
[[nodiscard]] PENSTOCK_API std::span<const std::string_view> row_simulation_policies() noexcept;

/// Runs policies over one trace, which is looked at by the constructor alone. Copies share what it
/// made of it: 12 bytes an id, and 8 more a row. Thread-safe.
class PENSTOCK_API RowSimulator {
public:
    /// Throws Error: kInvalidArgument for a trace whose `ends` are not in order, and for 2^32
    /// different rows.
    explicit RowSimulator(const RowTrace& trace);
    /// Throws Error: kInvalidArgument for a policy that is not known, for more than 2^30 slots, and
    /// for a window above 30. Computes only.
    [[nodiscard]] RowSimulation run(std::string_view policy,
                                    const RowSimulationOptions& options) const;

private:
    struct Impl;
    std::shared_ptr<const Impl> impl_;
};

/// Reads a trace. A file that begins as a .npy does has ids of int32, int64, uint32 or uint64: in
/// two dimensions a batch a row; in one, batches of `batch` ids, of which the last may be shorter.
/// Any other file has a batch after the other: the number of its ids as a little-endian integer of
/// 64 bits, and the ids, of 64 bits each. Throws Error: kInvalidArgument for a file that is neither
/// (a number that exceeds the file, a negative id), and for ids in one dimension without `batch`;
/// errors of reading. Any thread; blocks.
[[nodiscard]] PENSTOCK_API RowTrace read_row_trace(Engine& engine, const std::string& path,
                                                   std::uint64_t batch = 0);

}  // namespace penstock
