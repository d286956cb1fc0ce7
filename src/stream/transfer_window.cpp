// SPDX-License-Identifier: Apache-2.0
#include "stream/transfer_window.hpp"

#include "stream/when_room.hpp"

#include <penstock/error.hpp>

#include <chrono>
#include <utility>

namespace penstock::stream {

namespace {

constexpr std::chrono::milliseconds kSlice{50};

}  // namespace

TransferWindow::~TransferWindow() {
    for (Sent& sent : sent_) {
        if (sent.transfer.valid()) {
            sent.transfer.cancel();
        }
    }
    for (Sent& sent : sent_) {
        let_end(sent.transfer);  // the first error is on its way
    }
}

void TransferWindow::send(const TransferRequest& request, std::uint64_t bytes, bool may_run) {
    while (bytes_ != 0 && bytes_ + bytes > bytes_max_) {
        await_oldest();
    }
    while (true) {
        // Its place comes first: what has begun is waited for.
        sent_.push_back({Transfer(), bytes});
        if (auto sent = may_run ? engine_.try_run(request) : engine_.try_submit(request)) {
            sent_.back().transfer = std::move(*sent);
            bytes_ += bytes;
            return;
        }
        sent_.pop_back();
        if (!sent_.empty()) {
            await_oldest();
            continue;
        }
        engine_.wait_for_room(kSlice);  // others have all of them
        progress_.tick();
    }
}

void TransferWindow::collect() {
    while (!sent_.empty() && sent_.front().transfer.done()) {
        sent_.front().transfer.wait();
        drop_oldest();
    }
    progress_.tick();
}

void TransferWindow::await_oldest() {
    while (!sent_.front().transfer.wait_for(kSlice)) {
        progress_.tick();
    }
    drop_oldest();
    progress_.tick();
}

void TransferWindow::drop_oldest() {
    bytes_ -= sent_.front().bytes;
    progress_.add(sent_.front().bytes);
    sent_.pop_front();
    ++arrived_;
}

}  // namespace penstock::stream
