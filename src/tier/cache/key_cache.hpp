// SPDX-License-Identifier: Apache-2.0
// The keys (rows of a table, for example) that are in memory: which slot has which key, and which
// key gives way to another. Any 64-bit number is a key. It moves nothing: the bytes are its
// owner's, who has slot i at i * stride, for example.
//
//     lookup()   gives each key a place, and pins the slots:
//                  kHit                the slot has the key
//                  kArriving           another caller reads the key into the slot
//                  kRead and a slot    this caller reads the key into the slot
//                  kRead and kNoSlot   this caller reads the key past the cache
//     commit()   the keys of kRead are in their slots, where others may read them from now on
//     release()  the slots are no longer read. A key of kRead that was not committed failed: its
//                slot is free, and who found it arriving gets to know
//
// A pinned slot is never given to another key. Where all slots that a key may have are pinned, or
// have keys that are needed sooner, it is read past the cache: nothing here waits for a slot.
//
// Two callers that miss the same key: the first reads it, and the second finds it arriving. The
// second may wait() for it once its own reads are under way, and then only for a limited time, for
// the first may be waited for by the same thread; a key that does not arrive is read past the
// cache. So no caller waits for another, unless it wants to.
//
// Slots are in sets of at most 64. A key may have the slots of two sets, which its hash names: so
// sets that many keys would like to be in do not matter. Where neither has a free slot, the policy
// chooses a victim: window in both, the others in the first.
//   static  keys that are there stay: the preloaded ones, and the first that came to free slots
//   clock   the first that was not used since the hand passed it last
//   s3fifo  Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023): a tenth of
//           a set is for keys that came once; those that were used again go to the rest, and so do
//           those that come back soon
//   window  Belady's, as far as hints reach: the key whose next hinted batch is the farthest; of
//           those without one, the one that was used least of late. A key that comes later than
//           its victim is passed by
//
// Thread-safe: one mutex, held for some hundred keys at a time, by hint() for all of its keys. No
// call but the constructor and hint() allocates. After a fork the child makes a cache of its own
// (base/of_process).
#pragma once

#include "tier/cache/hinted_keys.hpp"
#include "tier/cache/use_counts.hpp"

#include <penstock/features.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace penstock::tier {

inline constexpr std::uint32_t kNoSlot = UINT32_MAX;
inline constexpr std::uint32_t kSlotsMax = std::uint32_t{1} << 30;
/// Slots with room for all of so many keys. They lie in sets, some of which fill up before others.
[[nodiscard]] constexpr std::uint64_t slots_for_all(std::uint64_t keys) {
    return keys + keys / 2 + 64;
}
/// No hint; also what hint() returns for one that was not taken.
inline constexpr std::uint64_t kNoHint = 0;

enum class KeyState : std::uint8_t { kHit, kArriving, kRead };

struct KeyPlace {
    std::uint32_t slot = kNoSlot;
    KeyState state = KeyState::kRead;
};

/// The state of a slot that was found kArriving.
enum class Arrival : std::uint8_t { kArriving, kThere, kFailed };

/// Counts since the cache was made.
struct KeyCacheStats {
    std::uint64_t hits = 0;
    std::uint64_t arriving = 0;   ///< keys that another caller was reading
    std::uint64_t admitted = 0;   ///< keys that were read into a slot
    std::uint64_t passed_by = 0;  ///< keys that were read past the cache
    std::uint64_t pinned = 0;     ///< of these: because all slots of the set were pinned
    std::uint64_t evicted = 0;
    std::uint64_t preloaded = 0;
    std::uint64_t failed = 0;         ///< keys that were released without having been committed
    std::uint64_t hints = 0;          ///< batches that were taken
    std::uint64_t hints_refused = 0;  ///< there were too many, or too large ones
    std::uint64_t hints_used = 0;     ///< batches that were looked up
    std::uint64_t hints_dropped = 0;  ///< batches that did not come in time
};

class KeyCache {
public:
    /// `slots`: 0 to kSlotsMax; with 0 all keys are read past it. `hint_bytes_max`: what hints may
    /// have of memory; by default 64 bytes a slot and 16 MiB. Throws std::bad_alloc.
    KeyCache(std::uint32_t slots, RowPolicy policy,
             std::optional<std::uint64_t> hint_bytes_max = std::nullopt);
    KeyCache(const KeyCache&) = delete;
    KeyCache& operator=(const KeyCache&) = delete;
    ~KeyCache() = default;

    [[nodiscard]] std::uint32_t slots() const { return slots_; }
    [[nodiscard]] RowPolicy policy() const { return policy_; }

    /// places[i] is that of key ids[i]. The keys of a call are distinct (a key that comes again is
    /// found kArriving or past the cache, and is right). `hint`: the number that hint() returned
    /// for these keys; without one it is the hint that has 3 of 4 of them, if there is one. That
    /// hint is used up. Never throws.
    void lookup(std::span<const std::uint64_t> ids, std::span<KeyPlace> places,
                std::uint64_t hint = kNoHint) noexcept;
    /// Pins the keys that are there (kHit) and admits none: the others are kRead without a slot. A
    /// hint is used up as by lookup(). Never throws.
    void hold(std::span<const std::uint64_t> ids, std::span<KeyPlace> places) noexcept;
    /// Keys that are to be in memory before they are used, the most used first. They take free
    /// slots alone: kRead and a slot is to be read and committed, everything else is not.
    void preload(std::span<const std::uint64_t> ids, std::span<KeyPlace> places) noexcept;
    /// Those of `places` that are kRead and have a slot are in it. Others are left alone.
    void commit(std::span<const KeyPlace> places) noexcept;
    /// Once for each place, committed or not. Those without a slot are left alone.
    void release(std::span<const KeyPlace> places) noexcept;

    /// The state of a slot that this caller has pinned and found kArriving.
    [[nodiscard]] Arrival arrival(std::uint32_t slot) const noexcept;
    /// The same, after at most `limit`.
    [[nodiscard]] Arrival wait(std::uint32_t slot, std::chrono::nanoseconds limit) const noexcept;

    /// These keys are looked up after those of all hints before. The number of the hint, or kNoHint
    /// where it was not taken: with 31 outstanding, past the memory for hints, or with a policy
    /// that uses none. Throws std::bad_alloc, and then it was not taken.
    std::uint64_t hint(std::span<const std::uint64_t> ids);
    void drop_hints() noexcept;

    /// The slot that has the key or gets it, for tests: it is not pinned.
    [[nodiscard]] std::optional<std::uint32_t> find(std::uint64_t id) const noexcept;
    [[nodiscard]] KeyCacheStats stats() const noexcept;
    /// Bytes of the tables that grow with the slots.
    [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;
    /// Bytes of the table of hinted keys.
    [[nodiscard]] std::uint64_t hint_bytes() const noexcept;

private:
    // A slot is free, arriving, there, or failed (until the last who found it arriving lets go).
    enum class SlotState : std::uint8_t { kFree, kArriving, kThere, kFailed };
    struct Set {
        std::uint32_t number = 0;
        std::uint32_t first = 0;
        std::uint32_t ways = 0;
    };
    struct Key {
        std::uint64_t id = 0;
        std::uint64_t hash = 0;
        Set set;
        Set other;
    };

    // A key, and the slots of its sets, a bit each, that have its tag.
    struct Probe {
        Key key;
        std::uint64_t in_set = 0;
        std::uint64_t in_other = 0;
    };

    [[nodiscard]] Set set_at(std::uint32_t number) const;
    [[nodiscard]] Key key_of(std::uint64_t id) const;
    [[nodiscard]] std::uint64_t with_tag(Set set, std::uint8_t tag) const;
    [[nodiscard]] std::uint64_t in_other_set(const Key& key) const;
    void probe(std::span<const std::uint64_t> ids, std::span<Probe> probes) const;
    [[nodiscard]] std::uint32_t find_in(Set set, std::uint64_t like, std::uint64_t id) const;
    [[nodiscard]] std::uint32_t find_slot(const Probe& probe) const;
    [[nodiscard]] std::uint32_t find_slot(const Key& key) const;
    [[nodiscard]] std::uint32_t free_slot(const Key& key) const;
    [[nodiscard]] KeyPlace pin(std::uint32_t slot);
    void take(std::uint32_t slot, const Key& key);
    void fail(std::uint32_t slot);
    void admit(const Key& key, KeyPlace& place);
    [[nodiscard]] bool start_batch(std::span<const std::uint64_t> ids, std::uint64_t hint);
    void count_use(const Key& key, std::uint32_t slot);

    // The policies (victims.cpp).
    void use(std::uint32_t slot);
    void enter(std::uint32_t slot, const Key& key, bool preloaded);
    [[nodiscard]] bool all_pinned(Set set) const;
    [[nodiscard]] std::uint32_t victim(const Key& key);  // kNoSlot: the key is passed by
    [[nodiscard]] std::uint32_t clock_victim(Set set);
    [[nodiscard]] std::uint32_t s3_victim(Set set);
    [[nodiscard]] std::uint32_t s3_oldest(Set set, bool in_main) const;
    void s3_queue(std::uint32_t slot, bool in_main);
    [[nodiscard]] std::uint32_t window_victim(const Key& key);
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
    // A value a slot. Tags are 0 in free slots, and 1 in failed ones, which no key has.
    std::vector<std::uint8_t> tags_;
    std::vector<std::uint64_t> ids_;
    std::vector<std::uint16_t> pins_;
    std::vector<SlotState> states_;
    std::vector<std::uint8_t> uses_;  // clock: 1 used; s3fifo: 0 to 3; window: of late
    // window: the hints that have the key. s3fifo: twice its number in its queue, and 1 in main.
    std::vector<std::uint32_t> words_;
    std::vector<std::uint16_t> ghosts_;  // s3fifo: hashes of keys that were evicted
    // A value a set: the hand of clock, the next place among the ghosts of s3fifo.
    std::vector<std::uint8_t> hands_;
    std::uint32_t stamp_ = 0;
    std::uint32_t unlike_ = 0;  // callers in a key that were like no hint
    HintedKeys hinted_;
    UseCounts counts_;
    KeyCacheStats stats_;
};

}  // namespace penstock::tier
