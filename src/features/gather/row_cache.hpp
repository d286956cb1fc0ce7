// SPDX-License-Identifier: Apache-2.0
// The rows of a table that are in memory: which slot has which row, and which row gives way to
// another. It knows numbers of rows and slots and moves nothing; the bytes are its owner's, who has
// slot i at i * stride, for example.
//
//     lookup()   gives each row a place, and pins the slots:
//                  kHit                the slot has the row
//                  kArriving           another gather reads the row into the slot
//                  kRead and a slot    this gather reads the row into the slot
//                  kRead and kNoSlot   this gather reads the row past the cache
//     commit()   the rows of kRead are in their slots, where others may read them from now on
//     release()  the slots are no longer read. A row of kRead that was not committed failed: its
//                slot is free, and who found it arriving gets to know
//
// A pinned slot is never given to another row. Where all slots that a row may have are pinned, or
// have rows that are needed sooner, it is read past the cache: nothing here waits for a slot.
//
// Two gathers that miss the same row: the first reads it, and the second finds it arriving. The
// second may wait() for it once its own reads are under way, and then only for a limited time, for
// the first may be waited for by the same thread; a row that does not arrive is read past the
// cache. So no gather waits for another, unless it wants to.
//
// Slots are in sets of at most 64. A row may have the slots of two sets, which its hash names: so
// sets that many rows would like to be in do not matter. Where neither has a free slot, the policy
// chooses a victim: window in both, the others in the first.
//   static  rows that are there stay: the preloaded ones, and the first that came to free slots
//   clock   the first that was not used since the hand passed it last
//   s3fifo  Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023): a tenth of
//           a set is for rows that came once; those that were used again go to the rest, and so do
//           those that come back soon
//   window  Belady's, as far as hints reach: the row whose next hinted batch is the farthest; of
//           those without one, the one that was used least of late. A row that comes later than
//           its victim is passed by
//
// Thread-safe: one mutex, held for some hundred rows at a time, by hint() for all of its rows. No
// call but the constructor and hint() allocates. After a fork the child makes a cache of its own
// (base/of_process).
#pragma once

#include "features/gather/hinted_rows.hpp"
#include "features/gather/use_counts.hpp"

#include <penstock/features.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace penstock::features {

inline constexpr std::uint32_t kNoSlot = UINT32_MAX;
inline constexpr std::uint32_t kSlotsMax = std::uint32_t{1} << 30;
/// Slots with room for all of so many rows. They lie in sets, some of which fill up before others.
[[nodiscard]] constexpr std::uint64_t slots_for_all(std::uint64_t rows) {
    return rows + rows / 2 + 64;
}
/// No hint; also what hint() returns for one that was not taken.
inline constexpr std::uint64_t kNoHint = 0;

enum class RowState : std::uint8_t { kHit, kArriving, kRead };

struct RowPlace {
    std::uint32_t slot = kNoSlot;
    RowState state = RowState::kRead;
};

/// The state of a slot that was found kArriving.
enum class Arrival : std::uint8_t { kArriving, kThere, kFailed };

/// Counts since the cache was made.
struct RowCacheStats {
    std::uint64_t hits = 0;
    std::uint64_t arriving = 0;   ///< rows that another gather was reading
    std::uint64_t admitted = 0;   ///< rows that were read into a slot
    std::uint64_t passed_by = 0;  ///< rows that were read past the cache
    std::uint64_t pinned = 0;     ///< of these: because all slots of the set were pinned
    std::uint64_t evicted = 0;
    std::uint64_t preloaded = 0;
    std::uint64_t failed = 0;         ///< rows that were released without having been committed
    std::uint64_t hints = 0;          ///< batches that were taken
    std::uint64_t hints_refused = 0;  ///< there were too many, or too large ones
    std::uint64_t hints_used = 0;     ///< batches that were gathered
    std::uint64_t hints_dropped = 0;  ///< batches that did not come in time
};

class RowCache {
public:
    /// `slots`: 0 to kSlotsMax; with 0 all rows are read past it. `hint_bytes_max`: what hints may
    /// have of memory; by default 64 bytes a slot and 16 MiB. Throws std::bad_alloc.
    RowCache(std::uint32_t slots, RowPolicy policy,
             std::optional<std::uint64_t> hint_bytes_max = std::nullopt);
    RowCache(const RowCache&) = delete;
    RowCache& operator=(const RowCache&) = delete;
    ~RowCache() = default;

    [[nodiscard]] std::uint32_t slots() const { return slots_; }
    [[nodiscard]] RowPolicy policy() const { return policy_; }

    /// places[i] is that of row ids[i]. The rows of a call are distinct (a row that comes again is
    /// found kArriving or past the cache, and is right). `hint`: the number that hint() returned
    /// for these rows; without one it is the hint that has 3 of 4 of them, if there is one. That
    /// hint is used up. Never throws.
    void lookup(std::span<const std::uint64_t> ids, std::span<RowPlace> places,
                std::uint64_t hint = kNoHint) noexcept;
    /// Pins the rows that are there (kHit) and admits none: the others are kRead without a slot. A
    /// hint is used up as by lookup(). Never throws.
    void hold(std::span<const std::uint64_t> ids, std::span<RowPlace> places) noexcept;
    /// Rows that are to be in memory before they are used, the most used first. They take free
    /// slots alone: kRead and a slot is to be read and committed, everything else is not.
    void preload(std::span<const std::uint64_t> ids, std::span<RowPlace> places) noexcept;
    /// Those of `places` that are kRead and have a slot are in it. Others are left alone.
    void commit(std::span<const RowPlace> places) noexcept;
    /// Once for each place, committed or not. Those without a slot are left alone.
    void release(std::span<const RowPlace> places) noexcept;

    /// The state of a slot that this gather has pinned and found kArriving.
    [[nodiscard]] Arrival arrival(std::uint32_t slot) const noexcept;
    /// The same, after at most `limit`.
    [[nodiscard]] Arrival wait(std::uint32_t slot, std::chrono::nanoseconds limit) const noexcept;

    /// These rows are gathered after those of all hints before. The number of the hint, or kNoHint
    /// where it was not taken: with 31 outstanding, past the memory for hints, or with a policy
    /// that uses none. Throws std::bad_alloc, and then it was not taken.
    std::uint64_t hint(std::span<const std::uint64_t> ids);
    void drop_hints() noexcept;

    /// The slot that has the row or gets it, for tests: it is not pinned.
    [[nodiscard]] std::optional<std::uint32_t> find(std::uint64_t id) const noexcept;
    [[nodiscard]] RowCacheStats stats() const noexcept;
    /// Bytes of the tables that grow with the slots.
    [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;
    /// Bytes of the table of hinted rows.
    [[nodiscard]] std::uint64_t hint_bytes() const noexcept;

private:
    // A slot is free, arriving, there, or failed (until the last who found it arriving lets go).
    enum class SlotState : std::uint8_t { kFree, kArriving, kThere, kFailed };
    struct Set {
        std::uint32_t number = 0;
        std::uint32_t first = 0;
        std::uint32_t ways = 0;
    };
    struct Row {
        std::uint64_t id = 0;
        std::uint64_t hash = 0;
        Set set;
        Set other;
    };

    // A row, and the slots of its sets, a bit each, that have its tag.
    struct Probe {
        Row row;
        std::uint64_t in_set = 0;
        std::uint64_t in_other = 0;
    };

    [[nodiscard]] Set set_at(std::uint32_t number) const;
    [[nodiscard]] Row row_of(std::uint64_t id) const;
    [[nodiscard]] std::uint64_t with_tag(Set set, std::uint8_t tag) const;
    [[nodiscard]] std::uint64_t in_other_set(const Row& row) const;
    void probe(std::span<const std::uint64_t> ids, std::span<Probe> probes) const;
    [[nodiscard]] std::uint32_t find_in(Set set, std::uint64_t like, std::uint64_t id) const;
    [[nodiscard]] std::uint32_t find_slot(const Probe& probe) const;
    [[nodiscard]] std::uint32_t find_slot(const Row& row) const;
    [[nodiscard]] std::uint32_t free_slot(const Row& row) const;
    [[nodiscard]] RowPlace pin(std::uint32_t slot);
    void take(std::uint32_t slot, const Row& row);
    void fail(std::uint32_t slot);
    void admit(const Row& row, RowPlace& place);
    [[nodiscard]] bool start_batch(std::span<const std::uint64_t> ids, std::uint64_t hint);
    void count_use(const Row& row, std::uint32_t slot);

    // The policies (victims.cpp).
    void use(std::uint32_t slot);
    void enter(std::uint32_t slot, const Row& row, bool preloaded);
    [[nodiscard]] bool all_pinned(Set set) const;
    [[nodiscard]] std::uint32_t victim(const Row& row);  // kNoSlot: the row is passed by
    [[nodiscard]] std::uint32_t clock_victim(Set set);
    [[nodiscard]] std::uint32_t s3_victim(Set set);
    [[nodiscard]] std::uint32_t s3_oldest(Set set, bool in_main) const;
    void s3_queue(std::uint32_t slot, bool in_main);
    [[nodiscard]] std::uint32_t window_victim(const Row& row);
    [[nodiscard]] std::span<std::uint16_t> ghosts_of(Set set);
    void remember_ghost(Set set, std::uint64_t hash);
    [[nodiscard]] bool forget_ghost(Set set, std::uint64_t hash);

    std::uint32_t slots_;
    RowPolicy policy_;
    std::uint64_t hint_bytes_max_;
    std::uint32_t sets_;
    std::uint32_t ways_ = 0;       // of a set, or one more
    std::uint32_t with_more_ = 0;  // so many sets, the first ones, have one more

    mutable std::mutex mutex_;
    mutable std::condition_variable arrived_;
    // A value a slot. Tags are 0 in free slots, and 1 in failed ones, which no row has.
    std::vector<std::uint8_t> tags_;
    std::vector<std::uint64_t> ids_;
    std::vector<std::uint16_t> pins_;
    std::vector<SlotState> states_;
    std::vector<std::uint8_t> uses_;  // clock: 1 used; s3fifo: 0 to 3; window: of late
    // window: the hints that have the row. s3fifo: twice its number in its queue, and 1 in main.
    std::vector<std::uint32_t> words_;
    std::vector<std::uint16_t> ghosts_;  // s3fifo: hashes of rows that were evicted
    // A value a set: the hand of clock, the next place among the ghosts of s3fifo.
    std::vector<std::uint8_t> hands_;
    std::uint32_t stamp_ = 0;
    std::uint32_t unlike_ = 0;  // gathers in a row that were like no hint
    HintedRows hinted_;
    UseCounts counts_;
    RowCacheStats stats_;
};

}  // namespace penstock::features
