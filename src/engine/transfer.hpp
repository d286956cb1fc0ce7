// SPDX-License-Identifier: Apache-2.0
// A transfer: one read or write that a caller asked for, of one extent or a million.
//
//   made -> prologue (open, preallocate) -> parts linked to channels -> parts quiet -> epilogue
//   (sync)
//        -> finished
//
// It finishes exactly once, when every byte of it is quiet, also after an error and a cancel: from
// then on nobody touches the caller's memory. It lives until the handle and the engine have both
// let go. `state` is the futex that waiters sleep on.
#pragma once

#include "base/clock.hpp"
#include "base/intrusive.hpp"
#include "base/result.hpp"
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
#include <string>
#include <vector>

namespace penstock::engine {

class Channel;
class DepthLimit;
class Transfer;
struct Seat;

/// What one channel does of a transfer. All but the link is the channel's own.
class Part {
public:
    base::Link<Part> link;
    Transfer* transfer = nullptr;
    Channel* channel = nullptr;
    Seat* seat = nullptr;  ///< its share of the transfer's depth limit, if it has one
    Plan plan;
    std::uint32_t in_flight = 0;
    Priority queue = Priority::kNormal;
    bool queued = false;  ///< in the channel's queues, or parked
    bool parked_before = false;
};

/// What is told of a transfer when it has finished and of nothing before.
class TransferOwner {
public:
    virtual ~TransferOwner() = default;
    /// Every part is quiet; on the thread that found it so. May do the epilogue; must end in
    /// finish().
    virtual void parts_done(Transfer& transfer) = 0;
    /// It is about to finish: its waiters have not been told yet.
    virtual void finishing(Transfer& transfer) = 0;
    /// It has finished; on the thread that finished it.
    virtual void finished(Transfer& transfer) = 0;
    /// An error that nobody will ever ask for: its handle was dropped.
    virtual void unobserved(const base::Error& error) = 0;
};

class Transfer {
public:
    Transfer(TransferOwner& owner, Op op, std::vector<std::shared_ptr<os::File>> files,
             Extents extents, bool allow_short);
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    // ---- immutable once parts are linked
    const Op op;
    const bool allow_short;
    std::vector<std::shared_ptr<os::File>> files;
    const Extents extents;
    std::vector<Part> parts;
    std::uint64_t total_bytes = 0;
    std::uint32_t block_bytes = 0;            ///< of a request at most; 0: as the channel has it
    std::shared_ptr<DepthLimit> depth_limit;  ///< or none

    // ---- any thread
    [[nodiscard]] Priority priority() const { return priority_.load(std::memory_order_relaxed); }
    void set_priority(Priority p) { priority_.store(p, std::memory_order_relaxed); }

    /// No request of it is drawn any more: it failed or was cancelled.
    [[nodiscard]] bool stopped() const { return (state() & kStopped) != 0; }
    [[nodiscard]] bool finished() const { return (state() & kFinished) != 0; }
    /// Notes the first error and stops it. The others are dropped.
    void fail(base::Error error);
    void cancel();
    /// After finished(): the error, or nullptr.
    [[nodiscard]] const base::Error* error() const { return error_ ? &*error_ : nullptr; }
    [[nodiscard]] TransferStatus status() const;

    /// Sleeps until it has finished or the time is over; false then. May return false early.
    bool wait(base::Nanos timeout) const;
    /// Writes 1 to an eventfd when it has finished (at once when it has).
    void notify(int eventfd);

    // ---- channels
    /// A read found the end of file number `file` at `end_offset`; `draft` is the request that did.
    void note_end_of_file(const Draft& draft, std::uint64_t end_offset);
    /// One part is quiet and has nothing more to draw.
    void part_done();

    // ---- owner
    /// The parts are laid out: from now on linked() is true.
    void expect_parts(std::uint32_t count);
    [[nodiscard]] bool linked() const { return linked_.load(); }
    /// The very end; the caller's reference is gone afterwards.
    void finish();

    // ---- results, after finished()
    [[nodiscard]] std::uint64_t bytes_moved() const;
    [[nodiscard]] std::uint64_t extent_bytes(std::uint64_t index) const;

    // ---- lifetime
    void acquire() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release();
    /// The handle is gone; an error of it that was never looked at goes to the owner.
    void abandon();
    void mark_observed() { observed_.store(true, std::memory_order_relaxed); }

    /// In the child of a fork: ends as cancelled without telling anybody but waiters.
    void end_after_fork();

    // ---- the owner's own
    struct Errand : Job {
        TransferOwner* owner = nullptr;
        Transfer* transfer = nullptr;
    };
    Errand errand;                      ///< prologue, then epilogue
    std::vector<std::string> paths;     ///< files that are opened for this transfer alone
    std::vector<std::uint32_t> groups;  ///< of each file: which of its domains
    DirectIo direct = DirectIo::kAuto;
    Transfer* live_next = nullptr;  ///< the engine's list of what runs
    Transfer* live_previous = nullptr;
    bool sync = false;       ///< make it durable before it finishes
    bool on_caller = false;  ///< its parts are turned on the caller's thread (inline)

private:
    static constexpr std::uint32_t kStopped = 1;
    static constexpr std::uint32_t kFinished = 2;
    static constexpr std::uint32_t kFailing = 4;  ///< somebody writes error_, or it is too late to
    static constexpr std::uint32_t kAbandoned = 8;
    static constexpr std::uint32_t kWaited = 16;  ///< somebody may sleep until it has finished

    ~Transfer() = default;
    void tell_unobserved();
    [[nodiscard]] std::uint32_t state() const { return state_.load(std::memory_order_acquire); }

    TransferOwner& owner_;
    mutable std::atomic<std::uint32_t> state_{0};
    std::atomic<std::uint32_t> parts_left_{0};
    std::atomic<std::uint32_t> references_{1};
    std::atomic<Priority> priority_{Priority::kNormal};
    std::atomic<bool> observed_{false};
    std::atomic<bool> linked_{false};
    std::optional<base::Error> error_;
    std::mutex notify_mutex_;
    std::vector<int> notify_;
    /// Reads that may be short: bytes of each extent before the end of its file.
    std::unique_ptr<std::atomic<std::uint64_t>[]> ends_;
};

}  // namespace penstock::engine
