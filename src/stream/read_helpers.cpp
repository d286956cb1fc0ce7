// SPDX-License-Identifier: Apache-2.0
#include "stream/read_helpers.hpp"

#include "base/align.hpp"
#include "base/start_threads.hpp"
#include "format/zip/crc32.hpp"
#include "stream/touch.hpp"

#include <penstock/memory.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock::stream {

namespace {

constexpr std::uint64_t kBytesForThreads = 4 * base::kMiB;
constexpr unsigned kThreadsMax = 8;
constexpr std::size_t kStepsAhead = 4;  // faulted in and not submitted yet

}  // namespace

std::uint64_t ReadSteps::bytes() const {
    return std::accumulate(steps.begin(), steps.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Step& step) { return sum + step.bytes; });
}

ReadHelpers::ReadHelpers(std::span<const Wanted> wanted, ReadSteps& steps, bool fresh,
                         std::function<void()> tell)
    : wanted_(wanted),
      steps_(steps),
      tell_(std::move(tell)),
      out_of_turn_(steps.steps.size()),
      here_(steps.steps.size()) {
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

bool ReadHelpers::touched(std::size_t step) {
    const std::lock_guard lock(mutex_);
    return touched_ > step;
}

void ReadHelpers::submitted(std::size_t steps) {
    {
        const std::lock_guard lock(mutex_);
        submitted_ = steps;
    }
    work_.notify_all();
}

// A piece may begin in the step before the one with its last byte, so all earlier steps count.
void ReadHelpers::arrived(std::size_t step) {
    {
        const std::lock_guard lock(mutex_);
        here_[step] = true;
        while (arrived_ < here_.size() && here_[arrived_]) {
            ++arrived_;
        }
        while (ready_ < steps_.pieces.size() && steps_.pieces[ready_].step < arrived_) {
            ++ready_;
        }
    }
    work_.notify_all();
}

void ReadHelpers::all_arrived() {
    {
        const std::lock_guard lock(mutex_);
        ready_ = steps_.pieces.size();
    }
    work_.notify_all();
}

bool ReadHelpers::help() {
    std::unique_lock lock(mutex_);
    if (may_touch()) {
        touch_one(lock);
        return true;
    }
    if (threads_.empty() && next_ < ready_) {  // little work, or no thread could be started
        sum_one(lock);
        return true;
    }
    return false;
}

bool ReadHelpers::finished() {
    const std::lock_guard lock(mutex_);
    check_failure();
    return summed_ == steps_.pieces.size();
}

void ReadHelpers::finish() {
    std::unique_lock lock(mutex_);
    while (next_ < ready_) {
        sum_one(lock);
    }
    done_.wait(lock, [&] { return summed_ == ready_; });
    check_failure();
}

// With the mutex.
void ReadHelpers::check_failure() const {
    if (failure_) {
        std::rethrow_exception(failure_);
    }
}

bool ReadHelpers::may_touch() const {
    return touching_ < steps_.steps.size() && touching_ < submitted_ + kStepsAhead;
}

// Memory comes first: nothing arrives while the device waits for it.
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
            sum_one(lock);
        }
    }
}

void ReadHelpers::sum_one(std::unique_lock<std::mutex>& lock) {
    ReadPiece& piece = steps_.pieces[next_++];
    lock.unlock();
    std::exception_ptr failure;
    try {
        sum(piece);
    } catch (...) {
        failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure_ ? failure_ : failure;
    if (++summed_ == steps_.pieces.size()) {
        done_.notify_all();
        tell_();
    }
}

void ReadHelpers::touch_one(std::unique_lock<std::mutex>& lock) {
    const std::size_t step = touching_++;
    lock.unlock();
    {
        Touch touch;
        for (const Extent& extent : steps_.steps[step].extents) {
            if (extent.memory.kind == MemoryKind::kHost) {
                touch.add(extent.memory.data, extent.memory.bytes);
            }
        }
    }
    lock.lock();
    out_of_turn_[step] = true;
    const std::size_t before = touched_;
    while (touched_ < out_of_turn_.size() && out_of_turn_[touched_]) {
        ++touched_;
    }
    if (touched_ != before) {
        tell_();
    }
}

void ReadHelpers::sum(ReadPiece& piece) {
    const Wanted& w = wanted_[piece.wanted];
    const ConstMemory memory(w.into.data + piece.begin, piece.bytes, w.into.kind, w.into.device);
    piece.found = windows_.with(memory, [&](auto bytes) { return sum_of(w, bytes); });
}

std::uint64_t sum_of(const Wanted& wanted, std::span<const std::byte> bytes) {
    return wanted.sums.empty() ? std::uint64_t{format::crc32(bytes)} : content_hash(bytes);
}

}  // namespace penstock::stream
