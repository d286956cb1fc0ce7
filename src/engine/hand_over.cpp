// SPDX-License-Identifier: Apache-2.0
// Requests of a channel that other threads do: what would block its own, and copies of cached
// bytes.
#include "engine/channel.hpp"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

namespace penstock::engine {

namespace {

ChannelRequest& of(Request& request) {
    return static_cast<ChannelRequest&>(request);
}

// What was taken for cached may have gone meanwhile. What is not there at once is then read through
// the cache all the same: the kernel began to when it was asked.
void read_cached(ChannelRequest& request) {
    os::File& file = *request.file;
    request.result = file.read_cached(request.offset, request.pieces);
    request.cached_bytes = static_cast<std::uint32_t>(std::max<std::int64_t>(request.result, 0));
    if (request.result == 0 || request.result == -EAGAIN || request.result == -EOPNOTSUPP) {
        file.cache_history().missed();
        request.result = file.read_at(os::Lane::kBuffered, request.offset, request.pieces);
    }
}

void do_blocking(Request& request) {
    os::File& file = *request.file;
    if (request.op == Op::kRead) {
        request.result = file.read_at(request.lane, request.offset, request.pieces);
        return;
    }
    std::unique_lock<std::mutex> gate;
    if (request.draft.edge) {
        gate = std::unique_lock(file.edge_gate());
    }
    request.result = file.write_at(request.lane, request.offset, request.pieces);
}

}  // namespace

void Channel::hand_over(ChannelRequest& request) {
    ++at_executor_;
    if (!request.draft.cached) {
        blocks_.push_back(request);
        return;
    }
    request.run = [](Job& job) noexcept {
        auto& self = static_cast<ChannelRequest&>(job);
        Channel& channel = *self.channel;
        read_cached(self);
        channel.returned_.put(self);
        channel.wake();
    };
    copying_.post(request);
}

// Buffered ends in a row for one file are one job: a hop to another thread costs more than each of
// them, and several threads would only wait for each other there.
void Channel::post_blocking() {
    while (Request* first = blocks_.pop_front()) {
        ChannelRequest& request = of(*first);
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

}  // namespace penstock::engine
