// SPDX-License-Identifier: Apache-2.0
// A transfer: one read or write that a caller asked for, of one extent or a million.
//
//   made -> windows: [open, preallocate -> parts linked to channels -> parts quiet -> sync, close]
//        -> finished
//
// A window has all files of a transfer of open files. One of paths has a few windows side by side,
// each with the next files in turn until none is left: see windows.cpp.
//
// It finishes exactly once, when every byte of it is quiet, also after an error and a cancel: from
// then on the caller's memory is not touched. It lives until the handle and the engine have both
// released it. `state` is the futex that waiters sleep on.
#pragma once

#include "base/clock.hpp"
#include "base/eventfd.hpp"
#include "base/intrusive.hpp"
#include "base/result.hpp"
#include "engine/descriptors.hpp"
#include "engine/extents.hpp"
#include "engine/job.hpp"
#include "engine/plan.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"

#include <penstock/types.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::engine {

class Channel;
class Core;
class DepthLimit;
class Domain;
class MoveOrder;
class Transfer;
struct Seat;
struct Watch;
struct Window;

/// Parts that wait in their order, and take turns with other flows. See flows.hpp.
struct Flow {
    base::Link<Flow> link;  ///< in the order of turns
    Flow* next_in_bucket = nullptr;
    const void* key = nullptr;  ///< what its parts have in common
    Part* first = nullptr;
    Part* last = nullptr;  ///< where there is a first
    std::int64_t credit_bytes = 0;
};

/// The part of a transfer that one channel does. All but the link is the channel's own.
class Part {
public:
    base::Link<Part> link{};
    Transfer* transfer = nullptr;
    Window* window = nullptr;
    Channel* channel = nullptr;
    Seat* seat = nullptr;  ///< its share of the transfer's depth limit, if it has one
    Flow flow{};           ///< for whichever flow lives here
    Plan plan{};
    CacheLookup lookup{};           ///< the plan's
    std::uint32_t block_bytes = 0;  ///< of a request at most; 0: as the channel has it
    std::uint32_t in_flight = 0;
    Priority queue = Priority::kNormal;
    bool queued = false;  ///< in the channel's queues, or parked
    bool parked_before = false;

    /// As the transfer's policy says; once the plan is made.
    void consult_cache(Counters& counters, bool caller_waits);
};

/// Files of a transfer that are worked on together, from their opening to their closing.
struct Window : Job, RoomWaiter {
    Window() { may_take_long = true; }

    Core* core = nullptr;
    Transfer* transfer = nullptr;
    std::uint32_t first_file = 0;  ///< [first_file, end_file), those that are in hand
    std::uint32_t end_file = 0;
    std::vector<Domain*> domains;  ///< of the files that are open
    std::span<Part> parts;         ///< one a channel of each domain; they live here, or inline:
    std::vector<Part> parts_on_channels;
    std::atomic<std::uint32_t> parts_left{0};
    Executor* opener = nullptr;     ///< on whose thread it is being opened; none: the caller's
    std::uint32_t taken_files = 0;  ///< room for so many was taken
    std::uint32_t to_open = 0;      ///< of those, not opened yet
    std::uint32_t descriptors = 0;  ///< of its files
    int highest_descriptor = -1;
    std::uint32_t domains_left = 0;  ///< whose files are still to be synced and closed
    bool reserves = false;           ///< room for its files, whose sizes come next
    bool on_caller = false;          ///< its parts are turned on the caller's thread (inline)
};

/// What a transfer to or from memory of devices has besides.
struct DeviceSide {
    std::vector<MemoryPlace> places;         ///< whose memory it moves bytes to or from
    std::shared_ptr<const MoveOrder> order;  ///< or none: what it begins after
};

class Transfer {
public:
    /// `core` hears of its windows and of its end: see "reports of transfers" there.
    Transfer(Core& core, Op op, FileList&& files, Extents&& extents, std::uint64_t total_bytes,
             bool allow_short);
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    // ---- immutable once parts are linked
    const Op op;
    const bool allow_short;
    /// Until it finishes. Those of paths are there while their window has them open.
    FileList files;
    const Extents extents;
    const std::uint64_t total_bytes;
    std::uint32_t block_bytes = 0;              ///< as asked for; Part has it in whole blocks
    std::shared_ptr<DepthLimit> depth_limit;    ///< or none
    const void* group = nullptr;                ///< an address that the transfers of one flow share
    std::unique_ptr<const DeviceSide> devices;  ///< or none: all extents are of the host's memory
    std::shared_ptr<const void> keep;           ///< the caller's

    // ---- any thread
    [[nodiscard]] Priority priority() const { return priority_.load(std::memory_order_relaxed); }
    void set_priority(Priority p) { priority_.store(p, std::memory_order_relaxed); }

    /// No request of it is drawn any more: it failed or was cancelled.
    [[nodiscard]] bool stopped() const { return (state() & kStopped) != 0; }
    [[nodiscard]] bool finished() const { return (state() & kFinished) != 0; }
    /// Notes the first error and stops it. The others are dropped.
    void fail(base::Error error) noexcept;
    void cancel() noexcept;
    /// After finished(): the error, or nullptr.
    [[nodiscard]] const base::Error* error() const { return error_ ? &*error_ : nullptr; }
    [[nodiscard]] TransferStatus status() const;

    /// Sleeps until it has finished or the time is over; false then. May return false early.
    bool wait(base::Nanos timeout) const;
    /// Of memory of a device: each byte is in place, or its copy is queued on a stream of the
    /// mover's. Not of every transfer (not of one that failed, or may be short) before its end.
    [[nodiscard]] bool settled() const { return (state() & kSettled) != 0; }
    /// As wait(), and for settled(), too.
    bool wait_settled(base::Nanos timeout) const;
    /// Adds 1 to an eventfd when it has finished (at once when it has).
    void notify(base::SharedEventfd eventfd);
    /// Watch::ended() when it has finished (at once when it has). One watch at a time.
    void watch(Watch& watch) noexcept;

    // ---- channels
    /// A read found the end of file number `file` at `end_offset`; `draft` is the request that did.
    void note_end_of_file(const Draft& draft, std::uint64_t end_offset);
    /// So many bytes more are in place, or their copy is queued. Each byte once.
    void settle(std::uint64_t bytes) noexcept;
    /// One part is quiet and has nothing more to draw.
    void part_done(const Part& part) noexcept;

    // ---- owner
    /// The parts are laid out: from now on linked() is true.
    void expect_parts(Window& window);
    [[nodiscard]] bool linked() const { return linked_.load(); }
    /// The very end; the caller's reference is gone afterwards.
    void finish() noexcept;

    // ---- results, after finished()
    [[nodiscard]] std::uint64_t bytes_moved() const;
    [[nodiscard]] std::uint64_t extent_bytes(std::uint64_t index) const;

    // ---- lifetime
    /// A second owner, as long as nobody but the first has it.
    void share() { references_.store(2, std::memory_order_relaxed); }
    void release();
    /// The handle is gone; an error of it that was never looked at goes to the owner.
    void abandon() noexcept;
    void mark_observed() { observed_.store(true, std::memory_order_relaxed); }

    /// In the child of a fork: ends as cancelled without telling anybody but waiters.
    void end_after_fork() noexcept;

    // ---- the owner's own
    Window first_window;
    std::vector<std::unique_ptr<Window>> more_windows;
    std::atomic<std::uint32_t> windows_left{1};
    std::atomic<std::uint64_t> next_file{0};  ///< that no window has had in hand yet
    std::mutex windows_mutex;        ///< paths: held while parts are laid out again, or poked
    std::vector<std::string> paths;  ///< files that are opened for this transfer alone
    /// For each file, the index of its domain in the window, or one of these. Empty if there is
    /// only one file.
    std::vector<std::uint32_t> groups;
    static constexpr std::uint32_t kNotOpen = UINT32_MAX;  ///< yet
    static constexpr std::uint32_t kJustOpen = UINT32_MAX - 1;
    static constexpr std::uint32_t kReady = UINT32_MAX - 2;    ///< open, with its room
    static constexpr std::uint32_t kThrough = UINT32_MAX - 3;  ///< closed
    bool in_order = true;  ///< no extent is of an earlier file than one before it
    CachePolicy cache = CachePolicy::kAuto;
    Transfer* live_next = nullptr;  ///< the engine's list of what runs: the next older one
    Transfer* live_previous = nullptr;
    std::uint64_t number = 0;  ///< of those that the engine has started, from 1 on
    bool sync = false;         ///< make it durable before it finishes
    bool has_missed = false;   ///< not all of it was in the page cache, where it was looked for
    bool small_write = false;  ///< goes through the page cache whole, where a file's policy is auto
    /// Writes of paths, cache `auto`, not synced: bytes for each file. Else empty.
    std::vector<std::uint64_t> file_bytes;

private:
    static constexpr std::uint32_t kStopped = 1;
    static constexpr std::uint32_t kFinished = 2;
    static constexpr std::uint32_t kFailing = 4;  ///< error_ is being written, or it is too late
    static constexpr std::uint32_t kAbandoned = 8;
    static constexpr std::uint32_t kWaited = 16;    ///< a thread may sleep until it has finished
    static constexpr std::uint32_t kNotifies = 32;  ///< there are eventfds to write to
    static constexpr std::uint32_t kSettled = 64;

    ~Transfer() = default;
    bool wait_for_any(std::uint32_t bits, base::Nanos timeout) const;
    void tell_unobserved() noexcept;
    void tell_watch() noexcept;
    void tell_eventfds() noexcept;
    [[nodiscard]] std::uint32_t state() const { return state_.load(std::memory_order_acquire); }

    Core& core_;
    mutable std::atomic<std::uint32_t> state_{0};
    std::atomic<std::uint32_t> references_{1};
    std::atomic<Priority> priority_{Priority::kNormal};
    std::atomic<bool> observed_{false};
    std::atomic<std::uint64_t> settled_bytes_{0};
    std::atomic<bool> linked_{false};
    std::optional<base::Error> error_;
    std::mutex notify_mutex_;  ///< taken by finish() only where kNotifies is set
    std::vector<base::SharedEventfd> notify_;
    std::atomic<Watch*> watch_{nullptr};  ///< kWaited is set where there is one
    /// The bytes of each requested extent before the end of its file, for reads that may be short
    /// or were sorted.
    std::unique_ptr<std::atomic<std::uint64_t>[]> ends_;
};

}  // namespace penstock::engine
