// SPDX-License-Identifier: Apache-2.0
// A channel: a ring of requests with a loop that turns it.
//
//              link(), any thread
//                     |
//   inbox -> classes -+-> draw -> [move in] -> push -> device -> reap -> [move out] -> free
//                                                         ^        |
//                                                         +--------+  short, EAGAIN, EINTR
//
// Everything but link(), poke(), pause() and resume() happens in turn(), on one thread. A turn
// takes what arrived, reaps what is through, draws as much as there is room for, hands it over, and
// sleeps if asked to until something can go on. A request takes its entry and its slot together, so
// that no request ever holds one and waits for the other. Nothing here allocates or locks per
// request, and nothing throws: where there is no memory for slots, that is an error of the
// transfer.
#pragma once

#include "base/clock.hpp"
#include "engine/backend.hpp"
#include "engine/classes.hpp"
#include "engine/counters.hpp"
#include "engine/depth_limit.hpp"
#include "engine/slots.hpp"
#include "engine/transfer.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::engine {

struct ChannelOptions {
    std::uint32_t depth = 128;            ///< requests at the device
    std::uint32_t block_bytes = 1 << 20;  ///< of a request at most
    std::uint64_t in_flight_bytes = 16 << 20;
    /// Reads: what a request costs, in bytes; see Plan::read_over_gaps().
    std::uint64_t gap_bytes = 8 << 10;
    /// The background class is kept short at the device, for whatever it has there an urgent
    /// request waits behind.
    std::uint32_t background_block_bytes = 256 << 10;
    std::uint64_t background_bytes = 1280 << 10;
    SlotOptions slots;
};

class Channel;
class DevicePath;

/// A request that is through adds so many bytes to Transfer::settle(): its wanted ones; 0 for a
/// transfer that nobody can join before its end. Of a transfer to or from memory of devices.
[[nodiscard]] std::uint64_t bytes_to_settle(const Transfer& transfer, const Draft& draft);

/// A request of a channel, with what it needs while it is moved or done by an executor.
struct ChannelRequest : Request, Job {
    Channel* channel = nullptr;
    Move move;
    Station* station = nullptr;         ///< whose slot it has
    std::uint32_t resumed_bytes = 0;    ///< where in draft.bytes the last try began
    std::uint32_t cached_bytes = 0;     ///< of the last try, from the page cache
    std::uint64_t unsettled_bytes = 0;  ///< for Transfer::settle(), where it is to be told
    Priority charged = Priority::kNormal;
    bool by_call = false;            ///< not by the backend, which could not
    base::Fifo<Request> batch;       ///< done by one job, this one first
    base::Nanos troubled_since = 0;  ///< the first of `tries`
    base::Nanos due = 0;             ///< of the next one

    /// On the thread that copies.
    void read_from_cache();
};

/// A channel's backend has no other requests.
[[nodiscard]] inline ChannelRequest& as_channel_request(Request& request) {
    return static_cast<ChannelRequest&>(request);
}

class Channel {
public:
    /// `blocking` does what would block this thread: buffered ends, and all buffered I/O where the
    /// backend cannot take it. `copying` reads what is in the page cache. Without `device_slots` no
    /// transfer of it may be of a device's memory.
    Channel(const ChannelOptions& options, std::unique_ptr<Backend> backend,
            const MakeMover& make_mover, Executor& blocking, Executor& copying,
            const base::Clock& clock, SlotPool* device_slots = nullptr);
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    ~Channel();

    /// Before anything else: a way to devices without slots, and the threads that make its calls.
    void use_device_path(DevicePath& path, Executor& callers) {
        device_path_ = &path;
        device_callers_ = &callers;
    }
    /// Or nullptr. Any thread.
    [[nodiscard]] DevicePath* device_path() const { return device_path_; }

    // ---- any thread
    void link(Part& part) noexcept;
    /// A transfer was stopped or changed its class: look at all parts again.
    void poke();
    /// Draw nothing more until resume(); device_quiet() then says when nothing is at the device or
    /// moved. What the executor has is its own to say.
    void pause();
    void resume();
    [[nodiscard]] bool device_quiet() const { return quiet_.load(std::memory_order_acquire) != 0; }
    void wait_device_quiet(base::Nanos timeout) const;
    void wake();
    /// No part is linked any more: the channel's thread sleeps no more, and ends when it may.
    void stop();
    /// Parts that are linked and not done.
    [[nodiscard]] std::uint32_t linked_parts() const {
        return linked_parts_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] const Counters& counters() const { return counters_; }
    /// For what counts on the channel's thread.
    [[nodiscard]] Counters& counters() { return counters_; }
    [[nodiscard]] const Backend& backend() const { return *backend_; }

    // ---- the channel's thread
    /// Advances by one pass; true when anything moved. `may_sleep`: wait when there is nothing to
    /// do.
    bool turn(bool may_sleep) noexcept;
    [[nodiscard]] bool may_end() const { return stopping_.load() && idle(); }
    [[nodiscard]] bool idle() const {
        return out_ == 0 && classes_.empty() && held_.empty() && inbox_.empty();
    }
    /// When a request that was refused for a moment is tried again; kForever: no request waits.
    [[nodiscard]] base::Nanos next_try() const;
    void abandon_after_fork() {
        backend_->abandon_after_fork();
        movers_.abandon_after_fork();
    }

private:
    bool take_inbox();
    bool reap();
    bool draw();
    void sleep_or_enter(bool may_sleep);
    [[nodiscard]] bool arrived() const;
    void look_again_at_parts();
    [[nodiscard]] std::uint32_t block_bytes_of(const Part& part) const;
    void hold(Part& part);
    [[nodiscard]] bool may_begin(const Part& part);
    bool look_at_devices();
    bool look_at_held();
    [[nodiscard]] base::Nanos look_at_held_in() const;
    void park(Part& part);
    void unpark_one(Seat* seat);

    base::Result<Slot*> take_slot(const Part& part, const Draft& draft, Station*& station);
    bool start(Part& part, const Draft& draft, base::Nanos now);
    void push(ChannelRequest& request, base::Nanos now);
    void hand_over(ChannelRequest& request);
    void push_to_device(ChannelRequest& request);
    bool moved_to_device(ChannelRequest& request);
    void bounce(ChannelRequest& request);
    bool try_bounced();
    base::Result<void> check_device_path(os::File& file, const MemoryPlace& place);
    void post_blocking();
    void came_back(ChannelRequest& request);
    void fail(ChannelRequest& request);
    void read_came_back(ChannelRequest& request);
    void write_came_back(ChannelRequest& request);
    bool again(ChannelRequest& request);
    bool refused_for_now(ChannelRequest& request);
    bool try_delayed();
    void go_on(ChannelRequest& request, std::uint32_t align, base::Nanos now);
    void go_on_apart(ChannelRequest& request);
    bool read_apart(ChannelRequest& request);
    void end_of_file(ChannelRequest& request);
    void start_move(ChannelRequest& request, MoveTo to, std::uint64_t bytes);
    void moved(ChannelRequest& request);
    static void settle(ChannelRequest& request);
    void free_request(ChannelRequest& request);
    void retire(Part& part);
    void part_quiet(Part& part);

    const ChannelOptions options_;
    const base::Clock& clock_;
    std::unique_ptr<Backend> backend_;
    Executor& blocking_;
    Executor& copying_;
    DevicePath* device_path_ = nullptr;
    Executor* device_callers_ = nullptr;
    Movers movers_;
    Classes classes_;
    base::Fifo<Seat> seats_;      ///< on which parts are parked
    base::Fifo<Part> held_;       ///< of device memory that may not be touched yet, in their order
    base::Nanos held_since_ = 0;  ///< the last change of these
    base::Nanos held_due_ = 0;    ///< when to look at them again
    Counters counters_;

    std::vector<ChannelRequest> requests_;
    base::Fifo<Request> free_;
    base::Fifo<Request> delayed_;  ///< to be tried again in a while
    base::Fifo<Request> bounced_;  ///< refused by the device path, and waiting for a slot
    base::Fifo<Request> blocks_;   ///< for `blocking_`, from this turn
    std::uint32_t out_ = 0;        ///< requests that are not free
    std::uint32_t at_backend_ = 0;
    std::uint32_t at_executor_ = 0;
    std::uint64_t out_bytes_ = 0;
    std::uint64_t background_out_bytes_ = 0;
    std::uint32_t batch_ = 1;  ///< completions worth waiting for at once, learnt from the device

    base::Inbox<Part> inbox_;
    base::Inbox<Request> returned_;  ///< from the executor
    std::atomic<std::uint32_t> linked_parts_{0};
    std::atomic<bool> poked_{false};
    std::atomic<bool> stopping_{false};
    std::atomic<bool> asleep_{false};
    std::atomic<bool> paused_{false};
    std::atomic<std::uint32_t> quiet_{0};
};

}  // namespace penstock::engine
