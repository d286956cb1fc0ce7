// SPDX-License-Identifier: Apache-2.0
#include "stream/read_helpers.hpp"

#include "base/align.hpp"
#include "base/start_threads.hpp"
#include "format/crc32.hpp"

#include <penstock/machine.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace penstock::stream {

namespace {

constexpr std::uint64_t kBytesForThreads = 4 * base::kMiB;
constexpr unsigned kThreadsMax = 8;
constexpr std::size_t kStepsAhead = 4;  // that are faulted in and not submitted yet

void touch(const ReadSteps::Step& step) {
    for (std::size_t i = 0; i < step.extents.size();) {
        auto* begin = static_cast<std::byte*>(step.extents[i].memory);
        std::byte* end = begin;
        for (; i < step.extents.size() && step.extents[i].memory == end; ++i) {
            end += step.extents[i].bytes;
        }
        const auto from =
            base::align_down(reinterpret_cast<std::uintptr_t>(begin), base::kPageBytes);
        const auto to = base::align_up(reinterpret_cast<std::uintptr_t>(end), base::kPageBytes);
        // A kernel before 5.14 does not know it, and faults them in as they are read.
        static_cast<void>(::madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE));
    }
}

}  // namespace

std::uint64_t ReadSteps::bytes() const {
    return std::accumulate(steps.begin(), steps.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Step& step) { return sum + step.bytes; });
}

ReadHelpers::ReadHelpers(std::span<const Wanted> wanted, ReadSteps& steps, bool fresh)
    : wanted_(wanted), steps_(steps), out_of_turn_(steps.steps.size()) {
    const bool threads = steps.bytes() >= kBytesForThreads && (fresh || !steps.pieces.empty());
    if (!fresh || !threads) {
        touching_ = touched_ = steps.steps.size();
    }
    if (threads) {
        const unsigned cores = std::max(2U, usable_processors());
        base::start_threads(threads_, std::min(cores - 1, kThreadsMax), [this] { work(); });
    }
}

ReadHelpers::~ReadHelpers() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

bool ReadHelpers::await_touched(std::size_t step, std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    while (touched_ <= step && may_touch()) {
        touch_one(lock);
        done_.notify_all();
    }
    return done_.wait_for(lock, timeout, [&] { return touched_ > step; });
}

void ReadHelpers::submitted(std::size_t steps) {
    {
        const std::lock_guard lock(mutex_);
        submitted_ = steps;
    }
    work_.notify_all();
}

void ReadHelpers::arrived(std::size_t steps) {
    {
        const std::lock_guard lock(mutex_);
        while (ready_ < steps_.pieces.size() && steps_.pieces[ready_].step < steps) {
            ++ready_;
        }
    }
    work_.notify_all();
}

bool ReadHelpers::await_sums(std::chrono::nanoseconds timeout) {
    if (threads_.empty()) {  // there is little to do, or none could be had
        const auto until = std::chrono::steady_clock::now() + timeout;
        while (next_ < ready_) {
            sum(steps_.pieces[next_++]);
            if (std::chrono::steady_clock::now() >= until) {
                break;
            }
        }
        return next_ == ready_;
    }
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, timeout, [&] { return summed_ == ready_; });
}

bool ReadHelpers::may_touch() const {
    return touching_ < steps_.steps.size() && touching_ < submitted_ + kStepsAhead;
}

// Memory comes first: while the device waits for it nothing arrives.
void ReadHelpers::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        work_.wait(lock, [&] { return stopped_ || next_ < ready_ || may_touch(); });
        if (stopped_) {
            return;
        }
        if (may_touch()) {
            touch_one(lock);
        } else {
            ReadPiece& piece = steps_.pieces[next_++];
            lock.unlock();
            sum(piece);
            lock.lock();
            ++summed_;
        }
        done_.notify_all();
    }
}

void ReadHelpers::touch_one(std::unique_lock<std::mutex>& lock) {
    const std::size_t step = touching_++;
    lock.unlock();
    touch(steps_.steps[step]);
    lock.lock();
    out_of_turn_[step] = true;
    while (touched_ < out_of_turn_.size() && out_of_turn_[touched_]) {
        ++touched_;
    }
}

void ReadHelpers::sum(ReadPiece& piece) const {
    const Wanted& w = wanted_[piece.wanted];
    const auto bytes = w.into.subspan(piece.begin, piece.bytes);
    piece.found = w.sums.empty() ? format::crc32(bytes) : content_hash(bytes);
}

}  // namespace penstock::stream
