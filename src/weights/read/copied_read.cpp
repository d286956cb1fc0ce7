// SPDX-License-Identifier: Apache-2.0
#include "weights/read/copied_read.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace penstock::weights {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGain = 0.25;  // of what an end says: a thread that was late says it too

}  // namespace

void FolderSpeeds::learn(std::span<const End> ends) {
    const auto by_time = [](const End& a, const End& b) { return a.at < b.at; };
    const Time last = std::max_element(ends.begin(), ends.end(), by_time)->at;
    const std::chrono::duration<double> period = last - std::exchange(last_, last);
    if (period.count() <= 0) {
        return;
    }
    for (const End& end : ends) {
        const double idle = std::chrono::duration<double>(last - end.at) / period;
        speeds_[end.folder] *= 1 + kGain * std::min(idle, 1.0);
    }
}

void CopiedRead::add(Transfer transfer, std::uint32_t folder) {
    parts_.push_back({std::move(transfer), {folder, {}}});
    const auto turn = static_cast<std::ptrdiff_t>(speeds_->next_turn() % parts_.size());
    std::rotate(parts_.begin(), parts_.begin() + turn, parts_.end());
}

bool CopiedRead::done() const noexcept {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const CopyRead& part) { return part.is_over || part.transfer.done(); });
}

void CopiedRead::wait() {
    static_cast<void>(wait_for(std::chrono::nanoseconds::max()));
}

bool CopiedRead::wait_for(std::chrono::nanoseconds timeout) {
    timeout = std::max(timeout, std::chrono::nanoseconds());
    const Clock::time_point now = Clock::now();
    const Clock::time_point until =
        timeout < Clock::time_point::max() - now ? now + timeout : Clock::time_point::max();
    for (CopyRead& part : parts_) {
        if (!part.is_over && !wait_for_part(part, until)) {
            return false;
        }
    }
    if (parts_.size() > 1) {
        std::vector<FolderSpeeds::End> ends;
        for (const CopyRead& part : parts_) {
            ends.push_back(part.end);
        }
        speeds_->learn(ends);
    }
    return true;
}

bool CopiedRead::wait_for_part(CopyRead& part, FolderSpeeds::Time until) {
    try {
        if (until == Clock::time_point::max()) {
            part.transfer.wait();
        } else if (!part.transfer.wait_for(std::max(until - Clock::now(), Clock::duration()))) {
            return false;
        }
    } catch (...) {
        part.is_over = true;
        stop();
        throw;
    }
    part.is_over = true;
    part.end.at = Clock::now();
    return true;
}

void CopiedRead::stop() noexcept {
    for (CopyRead& part : parts_) {
        try {
            if (!part.is_over && part.transfer.valid() && process_ == ::getpid()) {
                part.transfer.cancel();
                part.transfer.wait();
            }
        } catch (const std::exception&) {
            // The first error is the one that is reported.
        }
        part.is_over = true;
    }
}

void CopiedRead::cancel() {
    for (CopyRead& part : parts_) {
        part.transfer.cancel();
    }
}

void CopiedRead::set_priority(Priority priority) {
    for (CopyRead& part : parts_) {
        part.transfer.set_priority(priority);
    }
}

}  // namespace penstock::weights
