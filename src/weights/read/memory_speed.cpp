// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"

#include <penstock/memory.hpp>
#include <penstock/weights.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kShareBytes = 64 << 20;  // of each thread: more than its part of a cache
constexpr std::uint64_t kPieceBytes = 1 << 20;   // between two looks at the clock
constexpr unsigned kThreadsMax = 256;

// Adds up the words, so that each is read. Four sums: one would wait for itself.
std::uint64_t sum_of(const std::byte* bytes, std::uint64_t size) {
    std::uint64_t sums[4] = {};
    for (std::uint64_t at = 0; at + sizeof sums <= size; at += sizeof sums) {
        std::uint64_t words[4];
        std::memcpy(words, bytes + at, sizeof words);
        for (std::size_t i = 0; i < 4; ++i) {
            sums[i] += words[i];
        }
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

double measure_memory_rate(unsigned threads, std::chrono::nanoseconds time) {
    if (threads == 0) {
        threads = std::max(1U, usable_processors() - 1);
    }
    threads = std::min(threads, kThreadsMax);
    const Region memory = Region::host(threads * kShareBytes, true);
    std::memset(memory.data(), 1, memory.size());
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> kept{0};  // the sums, so that nobody leaves them out
    const Clock::time_point begin = Clock::now();
    const Clock::time_point until = begin + time;
    const auto work = [&](unsigned number) noexcept {
        const std::byte* const mine = memory.data() + number * kShareBytes;
        std::uint64_t sum = 0;
        std::uint64_t done = 0;
        do {
            sum += sum_of(mine + done % kShareBytes, kPieceBytes);
            done += kPieceBytes;
        } while (Clock::now() < until);
        kept += sum;
        bytes += done;
    };
    std::vector<std::jthread> workers;
    workers.reserve(threads);
    try {
        for (unsigned number = 1; number < threads; ++number) {
            workers.emplace_back(work, number);
        }
    } catch (const std::system_error& error) {
        workers.clear();
        base::raise(base::refused_thread(error, "measure memory"));
    }
    work(0);
    workers.clear();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return static_cast<double>(bytes) / std::max(seconds, 1e-9);
}

}  // namespace penstock
