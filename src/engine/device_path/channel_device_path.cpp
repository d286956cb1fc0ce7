// SPDX-License-Identifier: Apache-2.0
// The requests of a channel that go straight between a file and the memory of a device.
//
//   draw -> thread: DevicePath::move() -> came_back
//                                         |
//                          refused, or no byte: bounced_ -> slot -> as all others
#include "base/align.hpp"
#include "engine/channel.hpp"
#include "engine/device_path/device_path.hpp"

#include <utility>

namespace penstock::engine {

void Channel::push_to_device(ChannelRequest& request) {
    ++at_executor_;
    request.run = [](Job& job) noexcept {
        auto& self = static_cast<ChannelRequest&>(job);
        Channel& channel = *self.channel;
        const iovec& piece = self.pieces.front();
        const Extent extent = self.part->transfer->extents[self.draft.at.index];
        self.result = channel.device_path_->move(self.op, *self.file, place_of(extent.memory),
                                                 static_cast<std::byte*>(piece.iov_base),
                                                 piece.iov_len, self.offset);
        channel.returned_.put(self);
        channel.wake();
    };
    device_callers_->post(request);
}

// True where the way moved something, which is counted; else the request goes on through a slot.
bool Channel::moved_to_device(ChannelRequest& request) {
    const std::int64_t reached = std::int64_t{request.resumed_bytes} + request.result;
    if (request.result > 0 && reached > std::int64_t{request.done_bytes}) {
        counters_.device_path_bytes.add(static_cast<std::uint64_t>(request.result));
        return true;
    }
    bounce(request);
    return false;
}

void Channel::bounce(ChannelRequest& request) {
    Transfer& transfer = *request.part->transfer;
    if (transfer.stopped()) {
        free_request(request);
        return;
    }
    counters_.device_path_refusals.add(1);
    Draft& draft = request.draft;
    const MemoryPlace place = place_of(transfer.extents[draft.at.index].memory);
    if (device_path_->required() && !device_path_->takes(*request.file, place)) {
        transfer.fail(device_path_->why_not(*request.file, place));
        free_request(request);
        return;
    }
    // Bytes that came are done; the rest goes on through a slot.
    const auto done =
        static_cast<std::uint32_t>(base::align_down(request.done_bytes, kDevicePathAlign));
    draft.offset += done;
    draft.at.skip += done;
    draft.bytes -= done;
    draft.wanted_bytes -= done;
    draft.memory = nullptr;
    draft.slot = true;
    draft.to_device = false;
    out_bytes_ -= done;
    if (request.charged == Priority::kBackground) {
        background_out_bytes_ -= done;
    }
    request.done_bytes = 0;
    request.tries = 0;
    bounced_.push_back(request);
}

// Before anything is drawn: a request that holds an entry gets a slot before those that hold none.
bool Channel::try_bounced() {
    bool any = false;
    while (Request* first = bounced_.front()) {
        ChannelRequest& request = as_channel_request(*first);
        Transfer& transfer = *request.part->transfer;
        Slot* slot = nullptr;
        if (!transfer.stopped()) {
            auto taken = take_slot(*request.part, request.draft, request.station);
            if (!taken) {
                transfer.fail(std::move(taken.error()));
            } else if (*taken == nullptr) {
                return any;
            } else {
                slot = *taken;
            }
        }
        any = true;
        bounced_.pop_front();
        request.slot = slot;
        if (slot == nullptr) {
            free_request(request);
            continue;
        }
        counters_.slot_requests.add(1);
        if (request.op == Op::kWrite) {
            start_move(request, MoveTo::kSlot, request.draft.wanted_bytes);
        } else {
            go_on(request, 1, clock_.now());
        }
    }
    return any;
}

// A file or place that such a way must take, and does not.
base::Result<void> Channel::check_device_path(os::File& file, const MemoryPlace& place) {
    if (device_path_ != nullptr && device_path_->required() && !device_path_->takes(file, place)) {
        return base::fail(device_path_->why_not(file, place));
    }
    return {};
}

}  // namespace penstock::engine
