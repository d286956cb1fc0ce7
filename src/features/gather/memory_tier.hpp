// SPDX-License-Identifier: Apache-2.0
// Rows of a store's tables that are in memory, of one process: a KeyCache a table, and the memory
// of its slots.
//
//   lookup   what is in memory is copied to the caller at once, and its slots are let go of
//   reads    the others go straight to the caller's memory, never to a slot: a gather that is
//            dropped leaves nothing behind that is still written to
//   finish   what was admitted is copied from the caller's memory to its slots
//
// A caller that fills one piece of memory by two gathers at once gets undefined rows, and no other
// caller does: what overlaps is not admitted.
#pragma once

#include "features/files/feature_layout.hpp"
#include "features/gather/filled_memory.hpp"
#include "tier/cache/key_cache.hpp"

#include <penstock/features.hpp>
#include <penstock/memory.hpp>

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::features {

using tier::Arrival;
using tier::KeyCache;
using tier::KeyCacheStats;
using tier::KeyPlace;
using tier::KeyState;
using tier::kNoHint;
using tier::kNoSlot;
using tier::kSlotsMax;
using tier::slots_for_all;

/// The slots of each table, where all of them share `bytes` in the ratio of their sizes; what a
/// table does not need, the larger ones have.
[[nodiscard]] std::vector<std::uint32_t> share_slots(const Directory& directory,
                                                     std::uint64_t bytes);

/// The memory that a store gives to rows.
struct MemoryChoice {
    std::uint64_t bytes = 0;
    bool is_default = false;  ///< nobody asked for it, so a store without it is as good
    std::string text;         ///< for people: which rows stay, and why
};

/// `left_bytes`: that this process may still take.
[[nodiscard]] MemoryChoice choose_memory(const FeatureStoreOptions& options,
                                         const Directory& directory, bool is_npy,
                                         std::uint64_t left_bytes);

/// Adds what a cache has counted.
void add_cache_stats(const KeyCache& cache, FeatureStats& stats);

struct RowRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

class MemoryTier {
public:
    /// `bytes` are shared by the tables in the ratio of their sizes. Throws Error: kOutOfMemory.
    MemoryTier(const Directory& directory, std::uint64_t bytes, RowPolicy policy);
    MemoryTier(const MemoryTier&) = delete;
    MemoryTier& operator=(const MemoryTier&) = delete;
    ~MemoryTier() = default;

    struct Slots {
        std::unique_ptr<KeyCache> cache;  ///< nullptr: no row of the table is kept
        Buffer memory;
        std::uint64_t row_bytes = 0;

        [[nodiscard]] std::byte* row(std::uint32_t slot) const {
            return memory.data() + slot * row_bytes;
        }
    };
    [[nodiscard]] const Slots& of(std::uint32_t table) const { return slots_[table]; }
    /// False: gathers go past it.
    [[nodiscard]] bool keeps_rows() const { return keeps_rows_; }
    /// Adds its counts.
    void add_stats(FeatureStats& stats) const;
    /// The next of a table's rows, for who reads all of them in order: each once, by any thread.
    [[nodiscard]] RowRange take_next(std::uint32_t table, std::uint64_t count) noexcept;

private:
    friend class TierGather;

    std::vector<Slots> slots_;
    std::vector<std::uint64_t> rows_;  ///< of each table
    std::unique_ptr<std::atomic<std::uint64_t>[]> next_;
    bool keeps_rows_ = false;
    FilledMemory filled_;
};

/// Slots that are filled with rows before anybody asks for them. Without commit() they are free
/// again.
class PreloadedRows {
public:
    PreloadedRows(KeyCache& cache, std::span<const std::uint64_t> ids)
        : cache_(cache), places_(ids.size()) {
        cache_.preload(ids, places_);
    }
    PreloadedRows(const PreloadedRows&) = delete;
    PreloadedRows& operator=(const PreloadedRows&) = delete;
    ~PreloadedRows() { cache_.release(places_); }

    [[nodiscard]] bool is_read(std::size_t index) const {
        return places_[index].state == KeyState::kRead && places_[index].slot != kNoSlot;
    }
    [[nodiscard]] std::uint32_t slot(std::size_t index) const { return places_[index].slot; }
    void commit() noexcept { cache_.commit(places_); }

private:
    KeyCache& cache_;
    std::vector<KeyPlace> places_;
};

/// One table's rows of one gather. Dropped unfinished, it admits nothing.
class TierGather {
public:
    /// Looks them up and copies those that are there. `request` is checked. `reading`: what the
    /// transfer of the others keeps.
    TierGather(std::shared_ptr<MemoryTier> tier, const FeatureRequest& request,
               std::weak_ptr<const void> reading);
    TierGather(const TierGather&) = delete;
    TierGather& operator=(const TierGather&) = delete;
    ~TierGather();

    /// Rows to be read, and where to in `out`.
    [[nodiscard]] const std::vector<std::uint64_t>& ids() const { return ids_; }
    [[nodiscard]] const std::vector<std::uint64_t>& destinations() const { return destinations_; }
    [[nodiscard]] std::uint64_t hits() const { return hits_; }
    [[nodiscard]] std::uint32_t table() const { return table_; }
    /// The reads are over; `sound`: all rows are in `out`. Once. Never throws.
    void finish(bool sound) noexcept;

private:
    void copy_hits(std::span<const KeyPlace> places) const noexcept;

    const std::shared_ptr<MemoryTier> tier_;
    const std::uint32_t table_;
    const MemoryTier::Slots& slots_;
    Memory out_;
    pid_t process_;
    std::vector<std::uint64_t> ids_;
    std::vector<std::uint64_t> destinations_;
    std::vector<KeyPlace> admitted_;
    std::vector<std::uint64_t> admitted_rows_;  ///< of `out`
    FilledMemory::Position its_;
    std::uint64_t hits_ = 0;
    bool finished_ = false;
};

}  // namespace penstock::features
