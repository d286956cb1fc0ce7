// SPDX-License-Identifier: Apache-2.0
#include "engine/transfer.hpp"

#include "base/clock.hpp"
#include "base/eventfd.hpp"
#include "base/raise.hpp"
#include "base/wait_slice.hpp"
#include "device/mover/stream_order.hpp"
#include "engine/core.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace penstock {

namespace {

base::Error wrong(const std::string& message) {
    return base::error(ErrorCode::kInvalidArgument, "transfer", message);
}

engine::Transfer& require(engine::Transfer* transfer) {
    if (transfer == nullptr) {
        base::raise(wrong("this handle is empty: it was moved from, or never had a transfer"));
    }
    return *transfer;
}

}  // namespace

Transfer::Transfer(const std::shared_ptr<engine::Core>& core, engine::Transfer* transfer) noexcept
    : core_(core), transfer_(transfer) {}

Transfer::Transfer(Transfer&& other) noexcept
    : core_(std::move(other.core_)), transfer_(std::exchange(other.transfer_, nullptr)) {}

Transfer& Transfer::operator=(Transfer&& other) noexcept {
    if (this != &other) {
        reset();
        core_ = std::move(other.core_);
        transfer_ = std::exchange(other.transfer_, nullptr);
    }
    return *this;
}

Transfer::~Transfer() {
    reset();
}

void Transfer::reset() noexcept {
    if (transfer_ == nullptr) {
        return;
    }
    if (const auto core = core_.lock()) {  // reports its error later
        transfer_->abandon();
    }
    transfer_->release();
    transfer_ = nullptr;
}

std::uint64_t Transfer::result() {
    transfer_->mark_observed();
    if (const base::Error* error = transfer_->error()) {
        base::raise(*error);
    }
    return transfer_->bytes_moved();
}

std::uint64_t Transfer::wait() {
    engine::Transfer& transfer = require(transfer_);
    while (!transfer.wait(base::kWaitSlice.count())) {
    }
    return result();
}

std::optional<std::uint64_t> Transfer::wait_for(std::chrono::nanoseconds timeout) {
    engine::Transfer& transfer = require(transfer_);
    const base::SteadyClock clock;
    const base::Nanos start = clock.now();
    const base::Nanos limit = std::max<base::Nanos>(timeout.count(), 0);
    while (!transfer.finished()) {
        const base::Nanos left = limit - (clock.now() - start);
        if (left <= 0) {
            return std::nullopt;
        }
        static_cast<void>(transfer.wait(std::min<base::Nanos>(left, base::kWaitSlice.count())));
    }
    return result();
}

void Transfer::join(StreamHandle stream) {
    while (!join_for(stream, base::kWaitSlice)) {
    }
}

// The host waits until all copies are queued, and the stream for these: see copy_streams.hpp.
bool Transfer::join_for(StreamHandle stream, std::chrono::nanoseconds timeout) {
    engine::Transfer& transfer = require(transfer_);
    const base::SteadyClock clock;
    const base::Nanos start = clock.now();
    const base::Nanos limit = std::max<base::Nanos>(timeout.count(), 0);
    bool by_stream = transfer.devices != nullptr;
    while (!transfer.finished()) {
        by_stream = by_stream && !transfer.stopped();
        if (by_stream && transfer.settled()) {
            if (base::unwrap(device::hold_up(stream, transfer.devices->places,
                                             transfer.op == engine::Op::kRead
                                                 ? engine::MoveTo::kExtents
                                                 : engine::MoveTo::kSlot))) {
                return true;
            }
            by_stream = false;
        }
        const base::Nanos left = limit - (clock.now() - start);
        if (left <= 0) {
            return false;
        }
        const base::Nanos slice = std::min<base::Nanos>(left, base::kWaitSlice.count());
        static_cast<void>(by_stream ? transfer.wait_settled(slice) : transfer.wait(slice));
    }
    static_cast<void>(result());
    base::unwrap(device::check_stream(stream));
    return true;
}

bool Transfer::done() const noexcept {
    return transfer_ == nullptr || transfer_->finished();
}

TransferStatus Transfer::status() const noexcept {
    return transfer_ == nullptr ? TransferStatus::kDone : transfer_->status();
}

void Transfer::cancel() {
    engine::Transfer& transfer = require(transfer_);
    if (const auto core = core_.lock()) {
        core->cancel(transfer);
    }
}

void Transfer::set_priority(Priority priority) {
    engine::Transfer& transfer = require(transfer_);
    if (priority > Priority::kBackground) {
        base::raise(wrong("there is no such priority; it takes urgent, normal or background"));
    }
    if (const auto core = core_.lock()) {
        core->set_priority(transfer, priority);
    }
}

std::uint64_t Transfer::extent_bytes(std::size_t index) const {
    const engine::Transfer& transfer = require(transfer_);
    if (index >= transfer.extents.count()) {
        base::raise(wrong("there is no extent of that number"));
    }
    return transfer.extent_bytes(index);
}

std::uint64_t Transfer::total_bytes() const noexcept {
    return transfer_ == nullptr ? 0 : transfer_->total_bytes;
}

void Transfer::notify(int eventfd) {
    engine::Transfer& transfer = require(transfer_);
    if (!base::is_eventfd(eventfd)) {
        base::raise(wrong(fmt::format("notify: descriptor {} is not an open eventfd", eventfd)));
    }
    if (const auto core = core_.lock()) {
        base::unwrap(core->notify(transfer, eventfd));
    } else {
        base::add_one(eventfd);  // an engine that is gone has waited for it
    }
}

}  // namespace penstock
