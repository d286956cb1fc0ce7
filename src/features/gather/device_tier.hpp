// SPDX-License-Identifier: Apache-2.0
// Gathers into the memory of a GPU. Each row comes from the nearest place that has it:
//
//   kept     a slot in the GPU's memory; the host plans which row has which slot (KeyCache)
//   pinned   the memory of the store on the host, pinned and mapped for GPUs
//   read     from the files, through slots of the engine, to its place in the caller's memory
//
// One kernel brings the first two to the caller's memory, on the stream of the caller. When the
// reads are over, a second launch on that stream copies what is to be kept from there to its slots.
// Slots that a kernel reads or writes are pinned in the KeyCache until an event says that the
// kernel is over: no other gather gets them. Nobody waits for that; the next gather looks.
#pragma once

#include "features/gather/filled_memory.hpp"
#include "features/gather/memory_tier.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace penstock::features {

/// The rows that a store keeps on the host, pinned: a range a table.
class PinnedRows {
public:
    /// Throws Error.
    PinnedRows(std::shared_ptr<MemoryTier> tier, std::size_t tables, std::int32_t device);
    [[nodiscard]] MemoryTier& tier() const { return *tier_; }
    /// The address of a row for GPUs.
    [[nodiscard]] std::uint64_t row(std::uint32_t table, std::uint32_t slot) const {
        return ranges_[table].gpu_address() + slot * tier_->of(table).row_bytes;
    }

private:
    std::shared_ptr<MemoryTier> tier_;  // outlives the ranges
    std::vector<PinnedMemory> ranges_;
};

/// The end of a launch.
struct Outcome {
    std::atomic<bool> over{false};
    std::exception_ptr error;  ///< set before `over`
};

/// The slots and launches of a store on one GPU, of one process.
class DeviceTier {
public:
    /// `bytes`: of the GPU's memory, shared by the tables; 0: no row is kept there. `pinned`:
    /// nullptr where the store keeps no row on the host. Throws Error.
    DeviceTier(const Directory& directory, std::int32_t device, std::uint64_t bytes,
               RowPolicy policy, std::shared_ptr<PinnedRows> pinned);
    DeviceTier(const DeviceTier&) = delete;
    DeviceTier& operator=(const DeviceTier&) = delete;
    ~DeviceTier();

    struct Slots {
        std::unique_ptr<KeyCache> cache;  ///< nullptr: no row of the table is kept
        Region memory;
        std::uint64_t row_bytes = 0;

        [[nodiscard]] std::uint64_t row(std::uint32_t slot) const {
            return memory.gpu_address() + slot * row_bytes;
        }
    };
    [[nodiscard]] const Slots& of(std::uint32_t table) const { return slots_[table]; }
    [[nodiscard]] std::int32_t device() const { return device_; }
    [[nodiscard]] PinnedRows* pinned() const { return pinned_.get(); }
    void add_stats(FeatureStats& stats) const;
    /// Lets go of what kernels that are over have used.
    void reap() noexcept;

private:
    friend class DeviceGather;
    // Places of one cache that a launch uses. Of those that it fills, the rows are there
    // afterwards.
    struct Used {
        KeyCache* cache = nullptr;
        std::vector<KeyPlace> places;
        bool filled = false;
    };
    struct Flight {
        RowCopies launch;
        std::vector<Used> used;
        std::shared_ptr<Outcome> outcome;
    };
    struct Row {
        std::uint64_t from = 0;
        std::uint64_t to = 0;
        std::uint64_t bytes = 0;
    };
    /// Launches a copy of these rows; takes `used` when it is under way, and throws where it is
    /// not.
    std::shared_ptr<Outcome> launch(std::span<const Row> rows, std::vector<Used>& used,
                                    const StreamHandle& stream);
    void reap_locked() noexcept;

    pid_t process_;
    std::int32_t device_;
    std::shared_ptr<PinnedRows> pinned_;
    std::vector<Slots> slots_;
    FilledMemory filled_;
    std::mutex mutex_;  ///< of what follows
    std::list<Flight> flights_;
    std::vector<RowCopies> idle_;
};

/// The rows of one gather that go to one GPU. Dropped unfinished, it keeps no row.
class DeviceGather {
public:
    /// `stream`: nullopt is the legacy default stream, and wait() waits for the GPU. `reading`:
    /// what the transfer of the reads keeps.
    DeviceGather(std::shared_ptr<DeviceTier> tier, std::optional<StreamHandle> stream,
                 std::weak_ptr<const void> reading);
    DeviceGather(const DeviceGather&) = delete;
    DeviceGather& operator=(const DeviceGather&) = delete;
    ~DeviceGather();

    /// Rows of a table that are to be read, and where to in `out`.
    struct Reads {
        std::vector<std::uint64_t> ids;
        std::vector<std::uint64_t> destinations;
    };
    [[nodiscard]] std::int32_t device() const { return tier_->device(); }
    /// Looks the rows up. `request` is checked. The result lives as long as this.
    const Reads& add(const FeatureRequest& request);
    /// Brings those that are there to the caller's memory. Once, after the last add(). Throws
    /// Error.
    void launch();
    [[nodiscard]] std::uint64_t hits() const { return hits_; }
    /// Those of the hits that were in the memory of the GPU.
    [[nodiscard]] std::uint64_t kept() const { return kept_; }
    /// The reads are over; `sound`: all rows were read. Once. Never throws.
    void finish(bool sound) noexcept;
    /// Without a stream: waits until the GPU is through, at most so long, and says whether it is.
    /// Throws the Error of the GPU.
    [[nodiscard]] bool wait(std::chrono::nanoseconds limit);

private:
    struct TableRows {
        std::uint32_t table = 0;
        Memory out;
        Reads reads;
        std::vector<KeyPlace> admitted;
        std::vector<std::uint64_t> admitted_rows;
        FilledMemory::Position its;
        bool is_filled = false;  ///< `its` is there
    };
    [[nodiscard]] StreamHandle stream() const {
        return stream_.value_or(StreamHandle{0, tier_->device()});
    }
    void release(std::vector<DeviceTier::Used>& used) noexcept;

    const std::shared_ptr<DeviceTier> tier_;
    std::optional<StreamHandle> stream_;
    std::weak_ptr<const void> reading_;
    pid_t process_;
    std::list<TableRows> parts_;
    std::vector<DeviceTier::Row> rows_;
    std::vector<DeviceTier::Used> used_;
    std::vector<std::shared_ptr<Outcome>> outcomes_;
    std::uint64_t hits_ = 0;
    std::uint64_t kept_ = 0;
    bool finished_ = false;
};

/// The tiers of a store on all GPUs, of one process. Thread-safe.
class DeviceTiers {
public:
    /// nullptr: nothing is kept for that GPU, neither there nor on the host.
    using Make = std::function<std::shared_ptr<DeviceTier>(std::shared_ptr<PinnedRows>& pinned)>;
    [[nodiscard]] std::shared_ptr<DeviceTier> get(std::int32_t device, const Make& make);
    [[nodiscard]] std::vector<std::shared_ptr<DeviceTier>> all() const;

private:
    mutable std::mutex mutex_;
    std::shared_ptr<PinnedRows> pinned_;
    std::map<std::int32_t, std::shared_ptr<DeviceTier>> tiers_;
};

}  // namespace penstock::features
