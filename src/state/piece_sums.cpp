// SPDX-License-Identifier: Apache-2.0
#include "state/piece_sums.hpp"

#include "base/align.hpp"
#include "base/futex.hpp"
#include "base/start_threads.hpp"

#include <penstock/machine.hpp>

#include <algorithm>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::uint64_t kBytesForThreads = 4 * base::kMiB;
// A core sums 10 GB/s and more: this many are faster than any device.
constexpr unsigned kThreadsMax = 8;

}  // namespace

PieceSums::PieceSums(const FileImage& image, std::uint64_t until, std::function<void()> tell)
    : image_(image), tell_(std::move(tell)), left_(image.payloads().size()) {
    const std::uint64_t piece_bytes = image.piece_bytes();
    first_.assign(image.payloads().size() + 1, 0);
    if (piece_bytes == 0) {
        return;
    }
    for (std::size_t i = 0; i < image.payloads().size(); ++i) {
        const std::uint64_t bytes = image.payloads()[i].bytes;
        const std::uint64_t pieces = bytes / piece_bytes + (bytes % piece_bytes != 0 ? 1 : 0);
        first_[i + 1] = first_[i] + pieces;
        left_[i].store(static_cast<std::uint32_t>(pieces), std::memory_order_relaxed);
    }
    sums_.resize(first_.back());
    tasks_.reserve(first_.back());
    for (const format::Piece& piece : image.file().pieces()) {
        if (piece.kind == format::Piece::Kind::kPayload) {
            for (std::size_t i = first_[piece.source]; i < first_[piece.source + 1]; ++i) {
                const std::size_t number = i - first_[piece.source];
                tasks_.push_back({piece.source, number, piece.offset + number * piece_bytes});
            }
        }
    }
    if (image.payload_bytes() < kBytesForThreads) {
        let(kAll);
        work();
        return;
    }
    let(until);
    const unsigned cores = std::max(2U, usable_processors());
    base::start_threads(threads_, std::min(cores - 1, kThreadsMax), [this] { work(); });
}

PieceSums::~PieceSums() {
    stopped_.store(true);
    let(kAll);
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void PieceSums::let(std::uint64_t until) {
    const auto let = tasks_.begin() + let_.load(std::memory_order_relaxed);
    const auto end = std::partition_point(
        let, tasks_.end(), [until](const Task& task) { return task.offset < until; });
    let_.store(static_cast<std::uint32_t>(end - tasks_.begin()));
    if (end != let) {
        base::futex_wake_all(let_);
    }
}

bool PieceSums::await_turn(std::size_t task) {
    for (std::uint32_t let = let_.load(); let <= task; let = let_.load()) {
        if (stopped_.load()) {
            return false;
        }
        base::futex_wait(let_, let, base::kForever);
    }
    return !stopped_.load(std::memory_order_relaxed);
}

void PieceSums::work() {
    while (true) {
        const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= tasks_.size() || !await_turn(i)) {
            return;
        }
        sum(tasks_[i]);
    }
}

void PieceSums::sum(const Task& task) {
    const std::uint64_t piece_bytes = image_.piece_bytes();
    FileImage::Payload memory = image_.payloads()[task.payload];
    const std::uint64_t begin = task.piece * piece_bytes;
    memory.data += begin;
    memory.bytes = std::min(piece_bytes, memory.bytes - begin);
    try {
        sums_[first_[task.payload] + task.piece] = windows_.with(
            memory, [this](std::span<const std::byte> bytes) { return image_.hash(bytes); });
    } catch (...) {
        const std::lock_guard guard(failure_mutex_);
        failure_ = std::current_exception();
        failed_.store(true);
    }
    if (left_[task.payload].fetch_sub(1) == 1) {
        finished_.fetch_add(1);
        if (tell_ && awaited_.load() == task.payload) {
            tell_();
        }
        if (waiters_.load() != 0) {
            base::futex_wake_all(finished_);
        }
    }
}

bool PieceSums::await(std::size_t payload, std::chrono::nanoseconds timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    const auto done = [&] { return left_[payload].load() == 0; };
    awaited_.store(payload);
    // No thread could be started: the waiting thread makes the sums, up to the awaited one.
    while (threads_.empty() && !done()) {
        sum(tasks_[next_.fetch_add(1, std::memory_order_relaxed)]);
        if (std::chrono::steady_clock::now() >= until) {
            check_failure();
            return done();
        }
    }
    if (done()) {
        check_failure();
        return true;
    }
    waiters_.fetch_add(1);
    while (true) {
        const std::uint32_t seen = finished_.load();
        const auto left = until - std::chrono::steady_clock::now();
        if (done() || left.count() <= 0) {
            break;
        }
        base::futex_wait(finished_, seen, left.count());
    }
    waiters_.fetch_sub(1);
    check_failure();
    return done();
}

void PieceSums::check_failure() {
    if (failed_.load()) {
        const std::lock_guard guard(failure_mutex_);
        std::rethrow_exception(failure_);
    }
}

std::span<const std::uint64_t> PieceSums::of(std::size_t payload) const {
    return std::span(sums_).subspan(first_[payload], first_[payload + 1] - first_[payload]);
}

}  // namespace penstock::state
