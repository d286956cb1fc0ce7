// SPDX-License-Identifier: Apache-2.0
#include "engine/channel.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/futex.hpp"
#include "os/machine/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace penstock::engine {

namespace {

// With many small requests out, waiting for a few at once saves system calls; the time limit keeps
// a newcomer from waiting long.
constexpr std::uint32_t kOutPerBatch = 16;
constexpr std::uint32_t kBatchMax = 16;
constexpr base::Nanos kBatchWait = 50'000;
// The clock is read once for all requests that are drawn in a turn: they are handed over together.
constexpr base::Nanos kNotRead = -1;

// The kernel cuts a write at the limit on the size of files, and refuses a direct one that this
// makes odd.
int refusal_of(const Request& request) {
    std::uint64_t end = request.offset;
    for (const iovec& piece : request.pieces) {
        end += piece.iov_len;
    }
    const bool cut =
        request.result == -EINVAL && request.op == Op::kWrite && end > os::file_size_limit();
    return cut ? EFBIG : static_cast<int>(-request.result);
}

}  // namespace

Channel::Channel(const ChannelOptions& options, std::unique_ptr<Backend> backend,
                 const MakeMover& make_mover, Executor& blocking, Executor& copying,
                 const base::Clock& clock, SlotPool* device_slots)
    : options_(options),
      clock_(clock),
      backend_(std::move(backend)),
      blocking_(blocking),
      copying_(copying),
      movers_(
          make_mover, [this] { wake(); }, [this] { poke(); }, options.slots, device_slots,
          blocking),
      classes_(options.block_bytes, options.background_block_bytes),
      requests_(options.depth) {
    for (ChannelRequest& request : requests_) {
        request.channel = this;
        free_.push_back(request);
    }
}

Channel::~Channel() {
    PENSTOCK_ASSERT(out_ == 0);
}

void Channel::link(Part& part) noexcept {
    linked_parts_.fetch_add(1, std::memory_order_relaxed);
    inbox_.put(part);
    wake();
}

void Channel::poke() {
    poked_.store(true);
    wake();
}

// Not by poke() alone: the turn that hears of it may be the one that goes to sleep.
void Channel::stop() {
    stopping_.store(true);
    wake();
}

// Both poke, for a channel that is about to sleep looks at that once more, and not at `paused_`.
void Channel::pause() {
    quiet_.store(0);
    paused_.store(true);
    poke();
}

void Channel::resume() {
    paused_.store(false);
    quiet_.store(0);
    poke();
}

void Channel::wait_device_quiet(base::Nanos timeout) const {
    base::futex_wait(quiet_, 0, timeout);
}

// Pairs with sleep_or_enter(): a thread that puts work in first and reads `asleep_` afterwards
// either sees it set and wakes the channel, or the channel sees the work.
void Channel::wake() {
    if (asleep_.load() && asleep_.exchange(false)) {
        backend_->wake();
    }
}

bool Channel::arrived() const {
    return !inbox_.empty() || !returned_.empty() || poked_.load() || stopping_.load() ||
           movers_.ready();
}

bool Channel::turn(bool may_sleep) noexcept {
    counters_.turns.add(1);
    bool moved_on = take_inbox();
    if (!delayed_.empty()) {
        moved_on |= try_delayed();
    }
    if (movers_.met_devices()) {
        moved_on |= look_at_devices();
    }
    moved_on |= draw();
    if (!blocks_.empty()) {
        post_blocking();
    }
    if (paused_.load() && out_ == at_executor_ && quiet_.exchange(1) == 0) {
        base::futex_wake_all(quiet_);
    }
    sleep_or_enter(may_sleep && !movers_.ready());
    moved_on |= reap();
    return moved_on;
}

void Channel::sleep_or_enter(bool may_sleep) {
    if (!may_sleep) {
        backend_->enter(0, 0);
        return;
    }
    asleep_.store(true);
    if (arrived()) {
        asleep_.store(false);
        backend_->enter(0, 0);
        return;
    }
    const std::uint32_t want = std::clamp(at_backend_ / kOutPerBatch, 1U, batch_);
    base::Nanos limit = want > 1 ? kBatchWait : base::kForever;
    if (!delayed_.empty()) {
        limit = std::min(limit, std::max<base::Nanos>(next_try() - clock_.now(), 1));
    }
    if (!held_.empty()) {
        limit = std::min(limit, look_at_held_in());
    }
    const bool moving = out_ > at_backend_;
    backend_->enter(want, moving ? std::min(limit, movers_.look_again()) : limit);
    asleep_.store(false);
}

bool Channel::take_inbox() {
    bool any = false;
    base::Fifo<Part> parts = inbox_.take_all();
    while (Part* part = parts.pop_front()) {
        any = true;
        part->queued = true;
        if (part->transfer->devices == nullptr || may_begin(*part)) {
            classes_.push_back(*part, part->transfer->priority());
        } else {
            hold(*part);
        }
    }
    if (poked_.load() && poked_.exchange(false)) {
        any = true;
        look_again_at_parts();
        movers_.share_slots();
    }
    return any;
}

void Channel::look_again_at_parts() {
    base::Fifo<Part> parts = classes_.take_unless([](const Part& part) {
        return !part.transfer->stopped() && part.queue == part.transfer->priority();
    });
    while (Seat* seat = seats_.pop_front()) {
        parts.take(seat->parked);
    }
    held_due_ = 0;
    while (Part* part = parts.pop_front()) {
        if (part->transfer->stopped()) {
            part->queued = false;
            part_quiet(*part);
        } else {
            part->parked_before = false;
            classes_.push_back(*part, part->transfer->priority());
        }
    }
}

// Puts a part that was parked before at the front: it is older than the others.
void Channel::park(Part& part) {
    Seat& seat = *part.seat;
    classes_.remove_front(part);
    if (seat.parked.empty()) {
        seats_.push_back(seat);
    }
    if (std::exchange(part.parked_before, true)) {
        seat.parked.push_front(part);
    } else {
        seat.parked.push_back(part);
    }
}

void Channel::unpark_one(Seat* seat) {
    if (seat == nullptr || seat->parked.empty()) {
        return;
    }
    Part& part = *seat->parked.pop_front();
    classes_.push_front(part, part.transfer->priority());
    if (!seat->parked.empty()) {
        return;
    }
    base::Fifo<Seat> others;  // few: one for each limit that is met just now
    while (Seat* other = seats_.pop_front()) {
        if (other != seat) {
            others.push_back(*other);
        }
    }
    seats_ = others;
}

bool Channel::reap() {
    std::uint32_t reaped = 0;
    // Not zeroed: 512 bytes a turn.
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
    std::array<Request*, 64> done;
    std::size_t count = done.size();
    while (count == done.size()) {
        count = backend_->reap(done);
        if (count == 0) {
            break;
        }
        reaped += static_cast<std::uint32_t>(count);
        PENSTOCK_ASSERT(count <= at_backend_);
        at_backend_ -= static_cast<std::uint32_t>(count);
        const base::Nanos now = clock_.now();
        for (std::size_t i = 0; i < count; ++i) {
            counters_.latency.add(now - done[i]->submitted);
            came_back(as_channel_request(*done[i]));
        }
    }
    // Only a device that brings more at once than we waited for is waited on for more; one that
    // brings fewer would let each wait run into its time limit, which is a system call for nothing.
    if (reaped > batch_) {
        batch_ = std::min(batch_ * 2, kBatchMax);
    } else {
        batch_ = std::max(reaped, 1U);
    }
    bool any = reaped != 0;
    base::Fifo<Request> returned = returned_.take_all();
    while (Request* request = returned.pop_front()) {
        any = true;
        --at_executor_;
        counters_.latency.add(clock_.now() - request->submitted);
        came_back(as_channel_request(*request));
    }
    if (out_ > at_backend_) {  // else no move is out
        any |= movers_.reap([this](Station& /*station*/, Move& move) {
            moved(*static_cast<ChannelRequest*>(move.owner));
        });
    }
    return any;
}

bool Channel::draw() {
    bool any = false;
    base::Nanos now = kNotRead;
    while (!free_.empty() && !paused_.load(std::memory_order_relaxed)) {
        const bool background_too = background_out_bytes_ < options_.background_bytes;
        Part* part = classes_.pick(background_too);
        if (part == nullptr) {
            break;
        }
        const std::uint32_t block_bytes = block_bytes_of(*part);
        const Draft* draft = part->transfer->stopped() ? nullptr : part->plan.peek(block_bytes);
        if (draft == nullptr) {
            retire(*part);
            any = true;
            continue;
        }
        if (part->seat != nullptr && part->seat->full()) {
            park(*part);
            any = true;
            continue;
        }
        const bool room = out_bytes_ == 0 || out_bytes_ + draft->bytes <= options_.in_flight_bytes;
        if (!room) {
            break;
        }
        now = now == kNotRead ? clock_.now() : now;
        if (!start(*part, *draft, now)) {
            break;
        }
        any = true;
        // At once: it would have to wait for its next turn to be found through.
        if (part->plan.peek(block_bytes) == nullptr) {
            retire(*part);
        }
    }
    return any;
}

std::uint32_t Channel::block_bytes_of(const Part& part) const {
    const std::uint32_t most = part.queue == Priority::kBackground ? options_.background_block_bytes
                                                                   : options_.block_bytes;
    return part.block_bytes == 0 ? most : std::min(part.block_bytes, most);
}

// Takes entry and slot and sends the request on its way; false when there is no slot.
bool Channel::start(Part& part, const Draft& draft, base::Nanos now) {
    Slot* slot = nullptr;
    Station* station = nullptr;
    if (draft.slot) {
        auto taken = take_slot(part, draft, station);
        if (!taken) {
            part.transfer->fail(std::move(taken.error()));
            return true;
        }
        slot = *taken;
        if (slot == nullptr) {
            return false;
        }
    }
    Transfer& transfer = *part.transfer;
    ChannelRequest& request = as_channel_request(*free_.pop_front());
    request.op = transfer.op;
    request.draft = draft;
    request.part = &part;
    request.file = transfer.files[draft.file].get();
    request.io = draft.io;
    request.done_bytes = 0;
    request.tries = 0;
    request.by_call = false;
    request.unsettled_bytes = transfer.devices == nullptr ? 0 : bytes_to_settle(transfer, draft);
    part.plan.pop();
    ++part.in_flight;
    ++out_;
    if (part.seat != nullptr) {
        ++part.seat->out;
    }
    out_bytes_ += draft.bytes;
    classes_.charge(part, draft.bytes);
    if (part.queue == Priority::kBackground) {
        background_out_bytes_ += draft.bytes;
    }
    request.charged = part.queue;
    counters_.requests.add(1);
    if (request.draft.edge) {
        counters_.edge_requests.add(1);
    }
    if (request.draft.to_device) {
        counters_.device_path_requests.add(1);
    }
    if (slot != nullptr) {
        request.slot = slot;
        request.station = station;
        counters_.slot_requests.add(1);
        if (request.op == Op::kWrite) {
            start_move(request, MoveTo::kSlot, request.draft.wanted_bytes);
            return true;
        }
    }
    go_on(request, 1, now);
    return true;
}

// Sends what is left of a request, from the aligned place at or before `done_bytes`.
void Channel::go_on(ChannelRequest& request, std::uint32_t align, base::Nanos now) {
    const Draft& draft = request.draft;
    const auto from = static_cast<std::uint32_t>(base::align_down(request.done_bytes, align));
    request.resumed_bytes = from;
    request.offset = draft.offset + from;
    if (draft.memory != nullptr) {  // most are so
        request.memory[0] = {draft.memory + from, draft.bytes - from};
        request.pieces = {request.memory.data(), 1};
    } else if (draft.is_cached_list()) {
        request.pieces = {};  // it walks its extents itself
    } else if (draft.apart) {
        go_on_apart(request);
    } else if (request.slot != nullptr) {
        request.memory[0] = {request.slot->data + from, draft.bytes - from};
        request.pieces = {request.memory.data(), 1};
    } else {
        const Extents& extents = request.part->transfer->extents;
        const std::size_t used = gather_pieces(extents, draft.at, draft.bytes, request.memory);
        std::span<iovec> pieces(request.memory.data(), used);
        std::size_t skip = from;
        while (skip >= pieces.front().iov_len) {
            skip -= pieces.front().iov_len;
            pieces = pieces.subspan(1);
        }
        pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + skip;
        pieces.front().iov_len -= skip;
        request.pieces = pieces;
    }
    push(request, now);
}

void Channel::push(ChannelRequest& request, base::Nanos now) {
    request.submitted = now;
    if (request.draft.to_device) {
        push_to_device(request);
        return;
    }
    const bool by_call =
        request.by_call || (request.file->info().in_user_space && backend_->goes_on_by_itself());
    const bool here =
        !by_call && (request.io == os::IoPath::kDirect ||
                     (!request.draft.edge && !request.draft.cached && backend_->takes_buffered()));
    if (here) {
        ++at_backend_;
        backend_->push(request);
        return;
    }
    hand_over(request);
}

void Channel::came_back(ChannelRequest& request) {
    const bool read = request.op == Op::kRead;
    if (request.draft.to_device && !moved_to_device(request)) {
        return;
    }
    if (request.result < 0) {
        const Transfer& transfer = *request.part->transfer;
        const bool later = !transfer.stopped() && refused_for_now(request);
        if (!later && (transfer.stopped() || !read_apart(request))) {
            fail(request);
        }
        return;
    }
    auto device_bytes = static_cast<std::uint64_t>(request.result);
    if (request.cached_bytes != 0) {
        counters_.bytes_cached.add(request.cached_bytes);
        device_bytes -= std::exchange(request.cached_bytes, 0);
    }
    (read ? counters_.bytes_read : counters_.bytes_written).add(device_bytes);
    if (read) {
        read_came_back(request);
    } else {
        write_came_back(request);
    }
}

// A read of whole blocks begins with bytes that nobody asked for: the error is where the first of
// the others are.
void Channel::fail(ChannelRequest& request) {
    Transfer& transfer = *request.part->transfer;
    const std::uint64_t first = first_past(transfer.extents, request.draft, request.offset);
    const std::uint64_t offset = std::max(request.offset, transfer.extents[first].offset);
    const auto row = base::as_result("read", [&]() -> base::Result<std::string> {
        const std::string name = transfer.extents.name_of(first);
        return name.empty() ? name : "this is " + name;
    });
    transfer.fail(base::system_error(
        refusal_of(request), request.op == Op::kRead ? "read" : "write", request.file->info().path,
        offset, row ? std::string_view(*row) : std::string_view()));
    free_request(request);
}

void Channel::read_came_back(ChannelRequest& request) {
    const Draft& draft = request.draft;
    const std::uint32_t through =
        request.resumed_bytes + static_cast<std::uint32_t>(request.result);
    const bool progress = through > request.done_bytes;
    request.done_bytes = std::max(through, request.done_bytes);
    const std::uint32_t needed = draft.skip_bytes + draft.wanted_bytes;
    if (request.done_bytes >= needed) {
        if (request.slot != nullptr && !request.part->transfer->stopped()) {
            start_move(request, MoveTo::kExtents, draft.wanted_bytes);
        } else {
            free_request(request);
        }
        return;
    }
    if (request.part->transfer->stopped()) {
        free_request(request);
    } else if (progress && request.result != 0) {
        // Short: a device may do that anywhere, and the end of a file does. The next try tells.
        request.tries = 0;
        counters_.retries.add(1);
        go_on(request, resume_align(request, request.file->geometry().read_align), clock_.now());
    } else {
        end_of_file(request);
    }
}

void Channel::write_came_back(ChannelRequest& request) {
    const Draft& draft = request.draft;
    const std::uint32_t through =
        request.resumed_bytes + static_cast<std::uint32_t>(request.result);
    const bool progress = through > request.done_bytes;
    request.done_bytes = std::max(through, request.done_bytes);
    Transfer& transfer = *request.part->transfer;
    if (request.done_bytes >= draft.bytes || transfer.stopped()) {
        free_request(request);
    } else if (progress) {
        request.tries = 0;
        counters_.retries.add(1);
        go_on(request, resume_align(request, request.file->geometry().write_align), clock_.now());
    } else if (!again(request)) {
        transfer.fail(base::system_error(
            EIO, "write", request.file->info().path, request.offset,
            "the device accepted nothing, many times over; look at the kernel log (dmesg)"));
        free_request(request);
    }
}

void Channel::end_of_file(ChannelRequest& request) {
    const Draft& draft = request.draft;
    Transfer& transfer = *request.part->transfer;
    std::uint64_t end = draft.is_cached_list() ? request.offset : draft.offset + request.done_bytes;
    if (!transfer.allow_short) {
        // Another request may have met the end before this one: the size is what people look for.
        const auto size = request.file->size();
        end = size && !request.file->info().is_block_device ? std::min(end, *size) : end;
        const std::uint64_t index = first_past(transfer.extents, draft, end);
        const Extent extent = transfer.extents[index];
        const auto message = [&] {
            const std::string row = transfer.extents.name_of(index);
            return fmt::format(
                "the file has {} bytes, and {} bytes from byte {} on were asked for{}, up to {}; "
                "{}",
                end, extent.memory.bytes, extent.offset, row.empty() ? "" : " (" + row + ")",
                extent.offset + extent.memory.bytes,
                row.empty() ? "ask for fewer, or allow a short read"
                            : "ask for rows that the file has");
        };
        transfer.fail(base::error(ErrorCode::kEndOfFile, "read", message, request.file->info().path,
                                  extent.offset));
        free_request(request);
        return;
    }
    transfer.note_end_of_file(draft, end);
    if (request.slot != nullptr && request.done_bytes > draft.skip_bytes) {
        start_move(request, MoveTo::kExtents, request.done_bytes - draft.skip_bytes);
    } else {
        free_request(request);
    }
}

void Channel::free_request(ChannelRequest& request) {
    Part& part = *request.part;
    if (request.unsettled_bytes != 0) {
        settle(request);
    }
    if (request.slot != nullptr) {
        request.station->slots.give_back(*request.slot);
        request.slot = nullptr;
    }
    --out_;
    out_bytes_ -= request.draft.bytes;
    if (request.charged == Priority::kBackground) {
        background_out_bytes_ -= request.draft.bytes;
    }
    request.part = nullptr;
    free_.push_front(request);
    if (part.seat != nullptr) {
        --part.seat->out;
        unpark_one(part.seat);
    }
    if (--part.in_flight == 0 && !part.queued) {
        part_quiet(part);
    }
}

// The part has nothing more to draw (in this phase).
void Channel::retire(Part& part) {
    classes_.remove_front(part);
    part.queued = false;
    unpark_one(part.seat);
    part_quiet(part);
}

// A part that is not queued: when it has nothing out either, it goes on with its buffered ends, or
// is done. The transfer may be gone after part_done().
void Channel::part_quiet(Part& part) {
    if (part.in_flight != 0) {
        return;
    }
    if (!part.transfer->stopped() && part.plan.has_edges()) {
        part.plan.start_edges();
        part.queued = true;
        classes_.push_front(part, part.transfer->priority());
        return;
    }
    linked_parts_.fetch_sub(1, std::memory_order_relaxed);
    if (part.seat != nullptr) {
        part.seat->users.fetch_sub(1, std::memory_order_release);
    }
    part.transfer->part_done(part);
}

}  // namespace penstock::engine
