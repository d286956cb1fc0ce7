// SPDX-License-Identifier: Apache-2.0
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "base/wait_slice.hpp"
#include "engine/transfer.hpp"
#include "engine/watch.hpp"

#include <penstock/engine.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>
#include <vector>

namespace penstock {

namespace {

struct Member : engine::Watch {
    Transfer transfer;  ///< invalid: the member is free
    std::uint64_t number = 0;
};

}  // namespace

// A watch keeps all of it, so members stay in place until their transfers have released them.
struct TransferGroup::State : engine::Ends {
    std::deque<Member> members;
    std::vector<Member*> free;
    std::size_t size = 0;
    std::uint64_t next_number = 0;
    std::atomic<bool> woken{false};

    Member& place() {
        if (free.empty()) {
            if (free.capacity() <= members.size()) {
                free.reserve(2 * members.size() + 8);  // returning members allocates nothing
            }
            free.push_back(&members.emplace_back());
        }
        Member& member = *free.back();
        free.pop_back();
        return member;
    }
};

namespace {

void end(Transfer& transfer, engine::Transfer& inner) {
    transfer.cancel();
    while (!inner.wait(base::kWaitSlice.count())) {
    }
    inner.mark_observed();
}

}  // namespace

TransferGroup::TransferGroup() : state_(std::make_shared<State>()) {}

TransferGroup::~TransferGroup() {
    cancel();
    for (Member& member : state_->members) {
        if (member.transfer.valid()) {
            end(member.transfer, *member.transfer.transfer_);
            member.transfer = Transfer();
        }
    }
}

std::uint64_t TransferGroup::add(Transfer transfer) {
    if (!transfer.valid()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "add to a group",
                                "the handle is empty: it was moved from, or never had a transfer"));
    }
    Member* member = nullptr;
    try {
        member = &state_->place();
    } catch (...) {
        end(transfer, *transfer.transfer_);
        throw;
    }
    member->transfer = std::move(transfer);
    member->number = state_->next_number++;
    member->ends = state_;
    ++state_->size;
    member->transfer.transfer_->watch(*member);
    return member->number;
}

std::optional<TransferGroup::Ended> TransferGroup::wait_any(std::chrono::nanoseconds timeout) {
    const base::SteadyClock clock;
    const base::Nanos start = clock.now();
    const base::Nanos limit = std::max<base::Nanos>(timeout.count(), 0);
    while (state_->size != 0) {
        if (engine::Watch* const watch = state_->take()) {
            auto& member = static_cast<Member&>(*watch);
            Ended ended{member.number, std::exchange(member.transfer, Transfer())};
            state_->free.push_back(&member);
            --state_->size;
            return ended;
        }
        const base::Nanos left = limit - (clock.now() - start);
        if (left <= 0 || state_->woken.exchange(false)) {
            break;
        }
        state_->wait(std::min<base::Nanos>(left, base::kWaitSlice.count()));
    }
    return std::nullopt;
}

std::size_t TransferGroup::size() const noexcept {
    return state_->size;
}

void TransferGroup::cancel() {
    for (Member& member : state_->members) {
        if (member.transfer.valid()) {
            member.transfer.cancel();
        }
    }
}

void TransferGroup::wake() noexcept {
    state_->woken.store(true);
    state_->wake();
}

}  // namespace penstock
