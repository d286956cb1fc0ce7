// SPDX-License-Identifier: Apache-2.0
// Requests of a channel that were refused: for a moment, or for what nobody wants of them.
#include "base/align.hpp"
#include "engine/channel.hpp"

#include <algorithm>
#include <cerrno>

namespace penstock::engine {

namespace {

// EAGAIN and EINTR are tried again: a few times at once, then after pauses that grow, for what the
// machine lacks (memory, room in a queue) comes back in milliseconds or seconds. A device that says
// nothing else for so long is broken.
constexpr std::uint32_t kPauseDoublings = 14;  // 1 us to 16 ms
constexpr base::Nanos kPauseMin = 1'000;
constexpr base::Nanos kTroubleMax = 5'000'000'000;

}  // namespace

bool Channel::again(ChannelRequest& request) {
    const base::Nanos now = clock_.now();
    if (request.tries == 0) {
        request.troubled_since = now;
    }
    if (++request.tries > kTriesAtOnce && now - request.troubled_since > kTroubleMax) {
        return false;
    }
    counters_.retries.add(1);
    if (request.tries <= kTriesAtOnce) {
        push(request, now);
    } else {
        request.due =
            now + (kPauseMin << std::min(request.tries - kTriesAtOnce - 1, kPauseDoublings));
        delayed_.push_back(request);
    }
    return true;
}

// True where the request is on its way again. io_uring cancels a request that would block where it
// may start no thread for it: at the limit on those of a user or of a container. Nobody else
// cancels one. A blocking call needs no such thread.
bool Channel::refused_for_now(ChannelRequest& request) {
    if (request.result == -EAGAIN || request.result == -EINTR) {
        return again(request);
    }
    if (request.result != -ECANCELED || request.by_call || request.draft.to_device) {
        return false;
    }
    request.by_call = true;
    counters_.retries.add(1);
    push(request, clock_.now());
    return true;
}

base::Nanos Channel::next_try() const {
    base::Nanos next = base::kForever;
    for (const Request* request = delayed_.front(); request != nullptr;
         request = base::Fifo<Request>::next(*request)) {
        next = std::min(next, static_cast<const ChannelRequest*>(request)->due);
    }
    return next;
}

bool Channel::try_delayed() {
    bool any = false;
    const base::Nanos now = clock_.now();
    base::Fifo<Request> all = delayed_;
    delayed_ = {};
    while (Request* each = all.pop_front()) {
        auto& request = static_cast<ChannelRequest&>(*each);
        if (request.part->transfer->stopped()) {
            free_request(request);
        } else if (request.due <= now) {
            push(request, now);
        } else {
            delayed_.push_back(request);
            continue;
        }
        any = true;
    }
    return any;
}

// Sends the next wanted stretch, without the bytes between.
void Channel::go_on_apart(ChannelRequest& request) {
    const Draft& draft = request.draft;
    const std::uint32_t align = resume_align(request, request.file->geometry().read_align);
    const Stretch wanted = next_wanted(request.part->transfer->extents, draft, request.done_bytes);
    const auto from = static_cast<std::uint32_t>(base::align_down(wanted.begin, align));
    const auto to =
        std::min(static_cast<std::uint32_t>(base::align_up(wanted.end, align)), draft.bytes);
    request.resumed_bytes = from;
    request.offset = draft.offset + from;
    request.memory[0] = {request.slot->data + from, to - from};
    request.pieces = {request.memory.data(), 1};
}

// The bytes that could not be read may lie between the extents of a request: then each stretch is
// read by itself. False where that was done before, or nothing lies between (as in the page cache).
bool Channel::read_apart(ChannelRequest& request) {
    if (request.draft.extents == 0 || request.draft.apart || request.draft.is_cached_list()) {
        return false;
    }
    request.draft.apart = true;
    counters_.retries.add(1);
    go_on(request, 1, clock_.now());
    return true;
}

}  // namespace penstock::engine
