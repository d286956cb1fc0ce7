// SPDX-License-Identifier: Apache-2.0
// What the other cores do while a file is read: they fault fresh memory in, some steps ahead of the
// reading, and sum what has arrived. Where memory is slower than the device, the reader helps them.
#pragma once

#include "stream/checksum.hpp"
#include "stream/file_reader.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace penstock::stream {

/// What is summed as one.
struct ReadPiece {
    std::size_t wanted = 0;   ///< of which stretch
    std::uint64_t begin = 0;  ///< in it
    std::uint64_t bytes = 0;
    std::uint64_t found = 0;  ///< its sum
    std::size_t step = 0;     ///< with its last byte
};

struct ReadSteps {
    struct Step {
        std::vector<Extent> extents;
        std::uint64_t bytes = 0;
    };
    std::vector<Step> steps;
    std::vector<ReadPiece> pieces;  ///< in the order of their steps

    [[nodiscard]] std::uint64_t bytes() const;
};

class ReadHelpers {
public:
    /// Both outlive it.
    ReadHelpers(std::span<const Wanted> wanted, ReadSteps& steps, bool fresh);
    ReadHelpers(const ReadHelpers&) = delete;
    ReadHelpers& operator=(const ReadHelpers&) = delete;
    /// Stops where they are.
    ~ReadHelpers();

    /// Until the memory of a step is there, or the time is over (false). Lends a hand.
    [[nodiscard]] bool await_touched(std::size_t step, std::chrono::nanoseconds timeout);
    /// So many steps are with the engine or through.
    void submitted(std::size_t steps);
    /// So many steps have been read.
    void arrived(std::size_t steps);
    /// Until everything that arrived is summed, or the time is over (false).
    [[nodiscard]] bool await_sums(std::chrono::nanoseconds timeout);

private:
    void work();
    void touch_one(std::unique_lock<std::mutex>& lock);
    void sum(ReadPiece& piece) const;
    [[nodiscard]] bool may_touch() const;

    std::span<const Wanted> wanted_;
    ReadSteps& steps_;
    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable done_;
    std::size_t touching_ = 0;       // the next step whose memory is faulted in
    std::size_t touched_ = 0;        // all before it are
    std::vector<bool> out_of_turn_;  // and these; the helpers allocate nothing
    std::size_t submitted_ = 0;
    std::size_t ready_ = 0;  // pieces
    std::size_t next_ = 0;
    std::size_t summed_ = 0;
    bool stopped_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace penstock::stream
