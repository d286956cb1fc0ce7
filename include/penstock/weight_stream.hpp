// SPDX-License-Identifier: Apache-2.0
// Weights of a model that is larger than memory, streamed from its files in each pass.
//
//     auto table = penstock::inspect(engine, "model/");
//     penstock::WeightStream weights(engine, table, units, {.memory_bytes = 8ull << 30});
//     for (std::size_t unit = 0; unit < units.size(); ++unit) {       // a pass
//         const penstock::WeightView& layer = weights.acquire(unit);  // waits for its bytes
//         compute(layer.tensors);
//         weights.release(unit);
//     }
//
// A part of the weights stays in memory. The rest is read in each pass, ahead of its use, into the
// same slots again. The files are the user's own and are not changed.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/progress.hpp>
#include <penstock/tensor_table.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock {

namespace weights {
class Streaming;
}  // namespace weights

/// Tensors that are used together: a layer of a model.
struct WeightUnit {
    std::string name;                  ///< "model.layers.0"; for messages
    std::vector<std::string> tensors;  ///< their names in the table; a tensor may be in several
};

/// The share of memory and of reads for each unit.
struct WeightPlan {
    struct Unit {
        std::string name;
        std::uint64_t bytes = 0;       ///< of its tensors
        std::uint64_t read_bytes = 0;  ///< read in each pass; the others stay in memory
    };
    std::vector<Unit> units;
    std::uint64_t memory_bytes = 0;    ///< the budget
    std::uint64_t resident_bytes = 0;  ///< memory of the tensors that stay, in whole pages
    std::uint32_t slots = 0;           ///< of `slot_bytes` each; 0: everything stays
    std::uint64_t slot_bytes = 0;
    std::uint64_t read_bytes = 0;  ///< in each pass, of all units
    /// Memory that residents and slots take; at most `memory_bytes`.
    [[nodiscard]] std::uint64_t used_bytes() const noexcept {
        return resident_bytes + slots * slot_bytes;
    }
};

/// Chooses the tensors that stay in memory, so that a pass reads as little as possible. Of equal
/// layers it keeps the same share of each: access is cyclic, so a cache that drops the least
/// recently used would never hit. `slots`: 2 or more; each above 2 reads one unit further ahead.
/// Throws Error: kInvalidArgument for an unknown tensor; kOutOfMemory for a budget that is too
/// small, with the minimum and the unit that requires it. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightPlan plan_weights(const TensorTable& table,
                                                   std::span<const WeightUnit> units,
                                                   std::uint64_t memory_bytes,
                                                   std::uint32_t slots = 2);

/// The minimum budget of plan_weights(). Throws kInvalidArgument as there. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t least_weight_memory(const TensorTable& table,
                                                             std::span<const WeightUnit> units,
                                                             std::uint32_t slots = 2);

/// The budget of plan_weights() with which all tensors stay. Throws as there. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t most_weight_memory(const TensorTable& table,
                                                            std::span<const WeightUnit> units);

/// Bytes that the process could take in addition to what it has; negative: bytes to give back.
using SpareMemory = std::function<std::int64_t()>;

/// Returns a function for available_memory_bytes() minus `reserve_bytes`, which the program's code,
/// its other memory and the page cache need. While threads wait for memory for more than a tenth of
/// the time (memory_stall()), it returns at most -1. One thread at a time may call it.
[[nodiscard]] PENSTOCK_API SpareMemory spare_memory(std::uint64_t reserve_bytes);

struct WeightStreamOptions {
    std::uint64_t memory_bytes = 0;  ///< for slots and resident tensors together
    std::uint32_t slots = 2;         ///< see plan_weights()
    Progress progress = {};          ///< of reading the resident tensors
    /// WeightFolders::copies. Files that several folders have are read from all of them
    /// concurrently, in the ratio of their speeds. The speeds are measured when the stream is made,
    /// and corrected by which folder finishes first. Empty: only the files of the table.
    std::vector<std::vector<std::string>> copies = {};
    /// If given, the budget follows it. acquire() calls it while no unit is held, at most once in
    /// `spare_interval`. Missing bytes are given back at once, down to the minimum that works. Half
    /// of the spare bytes are taken at the beginning of a pass.
    SpareMemory spare = {};
    std::chrono::nanoseconds spare_interval = std::chrono::milliseconds(100);
};

/// The tensors of a unit in memory.
struct WeightView {
    /// In the order of WeightUnit::tensors, row-major. A tensor that is aligned to its elements in
    /// the file has the same address modulo 4096 as there; others begin at a multiple of 64.
    std::vector<std::span<const std::byte>> tensors;
    /// Keeps the addresses mapped, not the content.
    std::vector<std::shared_ptr<void>> owners;
    /// The slot of the tensors that were read, or WeightStream::kNoSlot.
    std::uint32_t slot = 0;
    /// Rises when the budget changes. With the same slot and layout, a unit has the same addresses.
    std::uint64_t layout = 0;
};

/// A folder of WeightStreamOptions::copies.
struct WeightFolderStats {
    double bytes_per_second = 0;   ///< as measured; 0: there is only one copy of each file
    std::uint64_t bytes_read = 0;  ///< without the resident tensors
    /// Of them, those of files without direct I/O. They pass through the page cache: a processor
    /// copies each of them once more, and they take memory that the budget does not count.
    std::uint64_t buffered_bytes = 0;
    std::string buffered_because;  ///< why a file has no direct I/O; empty: all have
};

/// Counters since the stream was made.
struct WeightStreamStats {
    std::uint64_t passes = 0;         ///< a pass ends when a unit is repeated
    std::uint64_t acquired = 0;       ///< acquired units
    std::uint64_t ready = 0;          ///< of them, those without waiting
    std::uint64_t on_demand = 0;      ///< of them, those that were not read ahead
    std::uint64_t bytes_read = 0;     ///< without the resident tensors
    std::vector<std::int64_t> stall;  ///< for each unit: nanoseconds of waiting
    std::vector<WeightFolderStats> folders;
    std::int64_t running = 0;        ///< nanoseconds in passes: from the first acquire() to the
                                     ///< last release() of each
    std::uint64_t needed_bytes = 0;  ///< that the acquired units needed from files
    /// The rate of reading while the files never idled: while one unit after the other was waited
    /// for. 0: that has not happened.
    double bytes_per_second = 0;
};

/// The share of the bound that passes reach, from 0 to 1. No pass is faster than reading alone
/// (`bytes` at `bytes_per_second`) or computing alone (the seconds that are not waited). If the
/// rate is not known (0), the result is a lower bound. 1 for 0 seconds. Thread-safe.
[[nodiscard]] PENSTOCK_API double share_of_bound(double seconds, double waited_seconds,
                                                 double bytes, double bytes_per_second);

/// Streams the units of a model. The first pass is read ahead in the order of the list, later
/// passes in the order in which units were acquired last. Units that stay in memory as a whole may
/// come at any time. Of units that nobody expected, few that were read ahead are read twice. One
/// thread at a time; in the child of a fork() calls throw kUnsupported, and the parent continues.
/// Movable.
class PENSTOCK_API WeightStream {
public:
    static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

    /// Opens the files, reads the resident tensors, and begins to read ahead. Throws Error: those
    /// of plan_weights(); kUnsupported for a tensor with strides; errors of the system.
    WeightStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                 std::vector<WeightUnit> units, const WeightStreamOptions& options,
                 const FileSystem& files = FileSystem::local());
    WeightStream(WeightStream&& other) noexcept;
    WeightStream& operator=(WeightStream&& other) noexcept;
    WeightStream(const WeightStream&) = delete;
    WeightStream& operator=(const WeightStream&) = delete;
    /// Cancels running reads and waits for them.
    ~WeightStream();

    [[nodiscard]] const WeightPlan& plan() const;
    /// Waits until the unit is in memory, where it stays until release(). A unit that was not read
    /// ahead is read at once, before others. Throws Error: kInvalidArgument if more units are held
    /// than there are slots; kDamaged for a file that was changed, checked once a pass; errors of
    /// reading, with the file and a tensor. The next acquire() tries again.
    const WeightView& acquire(std::size_t unit);
    /// The same, or nullptr when the time is over; reading continues.
    const WeightView* acquire_for(std::size_t unit, std::chrono::nanoseconds timeout);
    /// Releases a unit, once for each acquire(). Its slot is reused for the next units.
    void release(std::size_t unit);
    /// Changes the budget at the first acquire() while no unit is held: tensors are dropped, or
    /// read. It then follows `spare`; without `spare` it is fixed. Throws as plan_weights().
    void set_memory(std::uint64_t memory_bytes, SpareMemory spare = {});
    [[nodiscard]] WeightStreamStats stats() const;
    /// Does the same as the destructor. Later calls throw kClosed. May be called again.
    void close() noexcept;

private:
    std::unique_ptr<weights::Streaming> impl_;
};

}  // namespace penstock
