// SPDX-License-Identifier: Apache-2.0
// Work for the other cores while a file is read: they fault untouched memory in, some steps ahead
// of the reading, and sum the steps that have arrived. If memory is slower than the device, the
// reader helps them.
#pragma once

#include "stream/checksum.hpp"
#include "stream/file_reader.hpp"
#include "stream/host_windows.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace penstock::stream {

/// Bytes that are summed as one piece.
struct ReadPiece {
    std::size_t wanted = 0;   ///< index of its stretch
    std::uint64_t begin = 0;  ///< in the stretch
    std::uint64_t bytes = 0;
    std::uint64_t found = 0;  ///< its sum
    std::size_t step = 0;     ///< the step with its last byte
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

/// The sum of bytes of a stretch, as those that it is compared with.
[[nodiscard]] std::uint64_t sum_of(const Wanted& wanted, std::span<const std::byte> bytes);

class ReadHelpers {
public:
    /// Both outlive it. `tell` is called on any thread when more memory is faulted in or all is
    /// summed.
    ReadHelpers(std::span<const Wanted> wanted, ReadSteps& steps, bool fresh,
                std::function<void()> tell);
    ReadHelpers(const ReadHelpers&) = delete;
    ReadHelpers& operator=(const ReadHelpers&) = delete;
    /// Stops the threads after their current step or piece.
    ~ReadHelpers();

    /// Whether the memory of a step is faulted in.
    [[nodiscard]] bool touched(std::size_t step);
    /// Sets how many steps are with the engine or finished.
    void submitted(std::size_t steps);
    /// A step has been read.
    void arrived(std::size_t step);
    void all_arrived();
    /// Faults memory in, or sums a piece if no thread could be started; false: nothing to do.
    bool help();
    /// Whether all pieces are summed. Throws the error of a piece of a GPU that could not be
    /// brought back to be summed.
    [[nodiscard]] bool finished();
    /// Sums the rest with the helpers, once all has arrived. Throws as finished().
    void finish();

private:
    void work();
    void touch_one(std::unique_lock<std::mutex>& lock);
    void sum(ReadPiece& piece);
    void sum_one(std::unique_lock<std::mutex>& lock);
    [[nodiscard]] bool may_touch() const;
    void check_failure() const;

    std::span<const Wanted> wanted_;
    ReadSteps& steps_;
    const std::function<void()> tell_;
    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable done_;
    std::size_t touching_ = 0;       // the next step whose memory is faulted in
    std::size_t touched_ = 0;        // all before it are faulted in
    std::vector<bool> out_of_turn_;  // and these; the helpers allocate nothing
    std::size_t submitted_ = 0;
    std::vector<bool> here_;   // steps that have been read
    std::size_t arrived_ = 0;  // all before it have been read
    std::size_t ready_ = 0;    // pieces
    std::size_t next_ = 0;
    std::size_t summed_ = 0;
    bool stopped_ = false;
    HostWindows windows_;
    std::exception_ptr failure_;  // of a sum
    std::vector<std::thread> threads_;
};

}  // namespace penstock::stream
