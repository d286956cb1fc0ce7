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
// A part of the weights stays in memory, the rest is read in each pass, ahead of its use and back
// into the same slots. The files are the user's own and are not changed.
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

/// The share of memory and of reading that each unit has.
struct WeightPlan {
    struct Unit {
        std::string name;
        std::uint64_t bytes = 0;       ///< of its tensors
        std::uint64_t read_bytes = 0;  ///< of them, in each pass; the others stay in memory
    };
    std::vector<Unit> units;
    std::uint64_t memory_bytes = 0;    ///< the budget
    std::uint64_t resident_bytes = 0;  ///< memory of the tensors that stay, whole pages
    std::uint32_t slots = 0;           ///< of `slot_bytes` each; 0: everything stays
    std::uint64_t slot_bytes = 0;
    std::uint64_t read_bytes = 0;  ///< in each pass, of all units
    /// Memory that residents and slots take; at most `memory_bytes`.
    [[nodiscard]] std::uint64_t used_bytes() const noexcept {
        return resident_bytes + slots * slot_bytes;
    }
};

/// Chooses the tensors that stay in memory, so that a pass reads as little as it can: with equal
/// layers the same share of each, because access is cyclic and a cache that drops the least
/// recently used would never hit. `slots`: 2 or more; each above 2 reads one unit further ahead.
/// Throws Error: kInvalidArgument for a tensor that the table does not have; kOutOfMemory for a
/// budget that is too small, with the least that works and the unit that requires it. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightPlan plan_weights(const TensorTable& table,
                                                   std::span<const WeightUnit> units,
                                                   std::uint64_t memory_bytes,
                                                   std::uint32_t slots = 2);

/// The least budget that plan_weights() accepts. Throws kInvalidArgument likewise. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t least_weight_memory(const TensorTable& table,
                                                             std::span<const WeightUnit> units,
                                                             std::uint32_t slots = 2);

/// Bytes that the process could take in addition to what it has; negative: bytes to give back.
using SpareMemory = std::function<std::int64_t()>;

/// available_memory_bytes() less `reserve_bytes`, which the program's code, its other memory and
/// the page cache need; -1 at most while threads wait for memory for more than a tenth of the time
/// (memory_stall()). What it gives is called by one thread at a time.
[[nodiscard]] PENSTOCK_API SpareMemory spare_memory(std::uint64_t reserve_bytes);

struct WeightStreamOptions {
    std::uint64_t memory_bytes = 0;  ///< for slots and resident tensors together
    std::uint32_t slots = 2;         ///< see plan_weights()
    Progress progress = {};          ///< of reading the resident tensors
    /// WeightFolders::copies: what several folders have is read from all of them at once, in the
    /// ratio of their speeds, which are measured when the stream is made, and corrected by which
    /// folder is done first. Empty: only the files of the table.
    std::vector<std::vector<std::string>> copies = {};
    /// Where given, the budget follows it. acquire() asks while no unit is held, at most once in
    /// `spare_interval`: what is missing is given back at once, down to the least that works; half
    /// of what is spare is taken at the beginning of a pass.
    SpareMemory spare = {};
    std::chrono::nanoseconds spare_interval = std::chrono::milliseconds(100);
};

/// The tensors of a unit in memory.
struct WeightView {
    /// In the order of WeightUnit::tensors, row-major. At the same address modulo 4096 as in their
    /// file; a tensor that is not aligned to its elements there, at a multiple of 64.
    std::vector<std::span<const std::byte>> tensors;
    /// Keeps the addresses mapped, not the content.
    std::vector<std::shared_ptr<void>> owners;
    /// The slot of the tensors that were read, or WeightStream::kNoSlot.
    std::uint32_t slot = 0;
    /// Rises when the budget changes. A unit has the same addresses in the same slot and layout.
    std::uint64_t layout = 0;
};

/// A folder of WeightStreamOptions::copies.
struct WeightFolderStats {
    double bytes_per_second = 0;   ///< as measured; 0: there is only one copy of each file
    std::uint64_t bytes_read = 0;  ///< without the resident tensors
};

/// Counters since the stream was made.
struct WeightStreamStats {
    std::uint64_t passes = 0;         ///< a pass ends when a unit comes again
    std::uint64_t acquired = 0;       ///< units
    std::uint64_t ready = 0;          ///< of them, without waiting
    std::uint64_t on_demand = 0;      ///< of them, not read ahead
    std::uint64_t bytes_read = 0;     ///< without the resident tensors
    std::vector<std::int64_t> stall;  ///< of each unit: nanoseconds of waiting
    std::vector<WeightFolderStats> folders;
};

/// Streams the units of a model. The order of the first pass is that of the list; later passes are
/// read ahead in the order in which units were acquired last. One thread at a time; in the child of
/// a fork() calls throw kUnsupported, and the parent continues. Movable.
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
    /// Cancels what is being read and waits for it.
    ~WeightStream();

    [[nodiscard]] const WeightPlan& plan() const;
    /// Waits until the unit is in memory, where it stays until release(). A unit that was not read
    /// ahead is read at once, before others. Throws Error: kInvalidArgument when more units are
    /// held than there are slots; kDamaged for a file that was changed, found once a pass; errors
    /// of reading, with the file and a tensor. The next acquire() tries again.
    const WeightView& acquire(std::size_t unit);
    /// The same, or nullptr when the time is over; reading goes on.
    const WeightView* acquire_for(std::size_t unit, std::chrono::nanoseconds timeout);
    /// Its slot is used for the next units. As often as acquire().
    void release(std::size_t unit);
    /// Another budget, at the first acquire() while no unit is held: tensors are dropped, or read.
    /// It follows `spare` from then on, or nothing. Throws as plan_weights().
    void set_memory(std::uint64_t memory_bytes, SpareMemory spare = {});
    [[nodiscard]] WeightStreamStats stats() const;
    /// As the destructor. Later calls throw kClosed. Again is fine.
    void close() noexcept;

private:
    std::unique_ptr<weights::Streaming> impl_;
};

}  // namespace penstock
