// SPDX-License-Identifier: Apache-2.0
// Requests of a channel that others do: threads, what would block its own and copies of cached
// bytes; movers, what passes through a slot. And parts of device memory, of which nothing is drawn
// before their devices can be reached and the streams of their caller are so far: what waits behind
// a stream would hold slots and the copies of others.
#include "base/assert.hpp"
#include "engine/channel.hpp"
#include "engine/page_cache/cached_read.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace penstock::engine {

namespace {

// An event of a GPU wakes nobody, so it is asked: at first soon, then each time an eighth of what
// was waited so far has passed. Each question takes up to a microsecond.
constexpr base::Nanos kLookSoonest = 10'000;
constexpr base::Nanos kLookLatest = 200'000;
constexpr base::Nanos kLookAPart = 10'000;
constexpr base::Nanos kWaitedPerLook = 8;
constexpr std::uint32_t kPartsPerLook = 500;

void do_blocking(Request& request) {
    os::File& file = *request.file;
    if (request.op == Op::kRead) {
        request.result = file.read_at(request.io, request.offset, request.pieces);
        return;
    }
    std::unique_lock<std::mutex> gate;
    if (request.draft.edge) {
        gate = std::unique_lock(file.edge_gate());
    }
    request.result = file.write_at(request.io, request.offset, request.pieces);
}

}  // namespace

void ChannelRequest::read_from_cache() {
    CachedRead read;
    if (draft.is_cached_list()) {
        read = read_cached(*file, part->transfer->extents, draft, done_bytes);
        offset = read.offset;
    } else {
        read = read_cached(*file, offset, pieces);
    }
    result = read.result;
    cached_bytes = read.cached_bytes;
}

void Channel::hand_over(ChannelRequest& request) {
    ++at_executor_;
    if (!request.draft.cached) {
        blocks_.push_back(request);
        return;
    }
    request.run = [](Job& job) noexcept {
        auto& self = static_cast<ChannelRequest&>(job);
        Channel& channel = *self.channel;
        self.read_from_cache();
        channel.returned_.put(self);
        channel.wake();
    };
    copying_.post(request);
}

// Buffered ends in a row for one file are one job: a hop to another thread costs more than each of
// them, and several threads would only wait for each other there.
void Channel::post_blocking() {
    while (Request* first = blocks_.pop_front()) {
        ChannelRequest& request = as_channel_request(*first);
        request.batch.push_back(request);
        while (request.draft.edge && blocks_.front() != nullptr && blocks_.front()->draft.edge &&
               blocks_.front()->file == request.file) {
            request.batch.push_back(*blocks_.pop_front());
        }
        request.run = [](Job& job) noexcept {
            auto& self = static_cast<ChannelRequest&>(job);
            Channel& channel = *self.channel;
            base::Fifo<Request> batch = std::exchange(self.batch, {});
            while (Request* each = batch.pop_front()) {
                do_blocking(*each);
                channel.returned_.put(*each);
            }
            channel.wake();
        };
        blocking_.post(request);
    }
}

void Channel::hold(Part& part) {
    if (held_.empty()) {
        held_since_ = clock_.now();
    }
    held_.push_back(part);
    held_due_ = 0;
}

// True where its memory may be touched now. A part that failed goes on, to its end.
bool Channel::may_begin(const Part& part) {
    Transfer& transfer = *part.transfer;
    if (transfer.stopped()) {
        return true;
    }
    const auto asked = [&]() -> base::Result<bool> {
        bool reached = true;
        for (const MemoryPlace& place : transfer.devices->places) {
            PENSTOCK_TRY(station, movers_.at(place, transfer.number));
            reached = reached && station != nullptr;
        }
        const auto& order = transfer.devices->order;
        return reached && order != nullptr ? order->passed() : reached;
    };
    auto answer = asked();
    if (!answer) {
        transfer.fail(std::move(answer.error()));
        return true;
    }
    return *answer;
}

bool Channel::look_at_devices() {
    bool moved_on = !held_.empty() && look_at_held();
    movers_.forget_refusals();  // those that waited have heard them
    if (!bounced_.empty()) {
        moved_on |= try_bounced();
    }
    return moved_on;
}

bool Channel::look_at_held() {
    const base::Nanos now = clock_.now();
    if (now < held_due_) {
        return false;
    }
    bool any = false;
    std::uint32_t left = 0;
    base::Fifo<Part> all = std::exchange(held_, {});
    while (Part* part = all.pop_front()) {
        if (!may_begin(*part)) {
            held_.push_back(*part);
            ++left;
            continue;
        }
        any = true;
        if (part->transfer->stopped()) {
            part->queued = false;
            part_quiet(*part);
        } else {
            classes_.push_back(*part, part->transfer->priority());
        }
    }
    held_since_ = any ? now : held_since_;
    const base::Nanos pause =
        std::clamp((now - held_since_) / kWaitedPerLook, kLookSoonest, kLookLatest);
    held_due_ = now + std::max(pause, kLookAPart * std::min(left, kPartsPerLook));
    return any;
}

base::Nanos Channel::look_at_held_in() const {
    return std::max<base::Nanos>(held_due_ - clock_.now(), 1);
}

// nullptr: none is free.
base::Result<Slot*> Channel::take_slot(const Part& part, const Draft& draft, Station*& station) {
    const Transfer& transfer = *part.transfer;
    station = &movers_.host();
    if (transfer.devices != nullptr) {
        const MemoryPlace place = place_of(transfer.extents[draft.at.index].memory);
        if (place.kind != MemoryKind::kHost) {
            PENSTOCK_CHECK(check_device_path(*transfer.files[draft.file], place));
        }
        PENSTOCK_TRY(found, movers_.at(place, transfer.number));
        PENSTOCK_ASSERT(found != nullptr);  // may_begin() asked for all of them
        station = found;
    }
    return station->slots.take(draft.bytes, *station->mover);
}

std::uint64_t bytes_to_settle(const Transfer& transfer, const Draft& draft) {
    if (transfer.allow_short) {
        return 0;
    }
    // Between the extents of a request over gaps lies what nobody wants.
    return draft.extents == 0 || draft.is_cached_list()
               ? draft.wanted_bytes
               : for_each_piece_over_gaps(transfer.extents, draft, draft.wanted_bytes,
                                          [](std::byte*, std::uint64_t, std::uint64_t) {});
}

void Channel::settle(ChannelRequest& request) {
    request.part->transfer->settle(std::exchange(request.unsettled_bytes, 0));
}

// A copy of a device is queued now, and streams of its caller may be put behind it.
void Channel::start_move(ChannelRequest& request, MoveTo to, std::uint64_t bytes) {
    const Transfer& transfer = *request.part->transfer;
    Move& move = request.move;
    move.to = to;
    move.owner = &request;
    move.extents = &transfer.extents;
    move.draft = &request.draft;
    move.slot = request.slot->data + request.draft.skip_bytes;
    move.bytes = bytes;
    move.error = 0;
    request.station->mover->start(move);
    if (request.station->place.kind != MemoryKind::kHost && move.error == 0 &&
        request.unsettled_bytes != 0) {
        settle(request);
    }
}

void Channel::moved(ChannelRequest& request) {
    const Move& move = request.move;
    Transfer& transfer = *request.part->transfer;
    if (move.error != 0) {
        transfer.fail(request.station->mover->explain(move));
        free_request(request);
        return;
    }
    const bool of_host = request.station->place.kind == MemoryKind::kHost;
    (of_host ? counters_.copied_bytes : counters_.device_copied_bytes).add(move.bytes);
    if (request.op == Op::kWrite && !transfer.stopped()) {
        go_on(request, 1, clock_.now());
    } else {
        free_request(request);
    }
}

}  // namespace penstock::engine
