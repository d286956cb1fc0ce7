// SPDX-License-Identifier: Apache-2.0
#include "engine/transfer.hpp"

#include "base/clock.hpp"
#include "base/raise.hpp"
#include "engine/core.hpp"

#include <penstock/engine.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

// Long waits are made of these, so that whoever holds a signal handler gets in.
constexpr base::Nanos kWaitSlice = 200'000'000;

engine::Transfer& require(engine::Transfer* transfer) {
    if (transfer == nullptr) {
        base::raise(
            base::error(ErrorCode::kInvalidArgument, "transfer",
                        "this handle is empty: it was moved from, or never had a transfer"));
    }
    return *transfer;
}

}  // namespace

Transfer::Transfer(std::shared_ptr<engine::Core> core, engine::Transfer* transfer) noexcept
    : core_(std::move(core)), transfer_(transfer) {}

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
    if (transfer_ != nullptr) {
        transfer_->abandon();
        transfer_->release();
        transfer_ = nullptr;
    }
    if (core_ != nullptr && core_->dead()) {
        // In the child of a fork: its threads are the parent's, and nobody may wait for them.
        new std::shared_ptr<engine::Core>(std::move(core_));
    }
    core_.reset();
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
    while (!transfer.wait(kWaitSlice)) {
    }
    return result();
}

std::optional<std::uint64_t> Transfer::wait_for(std::chrono::nanoseconds timeout) {
    engine::Transfer& transfer = require(transfer_);
    const base::SteadyClock clock;
    const base::Nanos start = clock.now();
    while (!transfer.finished()) {
        const base::Nanos left = timeout.count() - (clock.now() - start);
        if (left <= 0) {
            return std::nullopt;
        }
        static_cast<void>(transfer.wait(std::min(left, kWaitSlice)));
    }
    return result();
}

bool Transfer::done() const noexcept {
    return transfer_ == nullptr || transfer_->finished();
}

TransferStatus Transfer::status() const noexcept {
    return transfer_ == nullptr ? TransferStatus::kDone : transfer_->status();
}

void Transfer::cancel() {
    engine::Transfer& transfer = require(transfer_);
    core_->cancel(transfer);
}

void Transfer::set_priority(Priority priority) {
    engine::Transfer& transfer = require(transfer_);
    core_->set_priority(transfer, priority);
}

std::uint64_t Transfer::extent_bytes(std::size_t index) const {
    const engine::Transfer& transfer = require(transfer_);
    if (index >= transfer.extents.count()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "transfer",
                                "there is no extent of that number"));
    }
    return transfer.extent_bytes(index);
}

std::uint64_t Transfer::total_bytes() const noexcept {
    return transfer_ == nullptr ? 0 : transfer_->total_bytes;
}

void Transfer::notify(int eventfd) {
    require(transfer_).notify(eventfd);
}

}  // namespace penstock
