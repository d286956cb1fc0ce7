// SPDX-License-Identifier: Apache-2.0
// The sums of a file's payloads, computed on other cores in the order of the file, while somebody
// writes it. What is small is summed at once, on the caller's thread.
#pragma once

#include "checkpoint/file_image.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace penstock::checkpoint {

class PieceSums {
public:
    /// The image outlives it; only its payloads and hash() are used.
    explicit PieceSums(const FileImage& image);
    PieceSums(const PieceSums&) = delete;
    PieceSums& operator=(const PieceSums&) = delete;
    /// Stops where it is.
    ~PieceSums();

    /// Until all pieces of a payload are summed, or the time is over (false).
    [[nodiscard]] bool await(std::size_t payload, std::chrono::nanoseconds timeout);
    /// After await().
    [[nodiscard]] std::span<const std::uint64_t> of(std::size_t payload) const;

private:
    struct Task {
        std::size_t payload;
        std::size_t piece;
    };
    void work();

    const FileImage& image_;
    std::vector<Task> tasks_;
    std::vector<std::size_t> first_;   // of each payload: its first sum; one more at the end
    std::vector<std::uint64_t> sums_;  // by payload
    std::vector<std::atomic<std::uint32_t>> left_;  // pieces of each payload
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> stopped_{false};
    std::atomic<std::uint32_t> finished_{0};  // payloads
    std::atomic<std::uint32_t> waiters_{0};
    std::vector<std::thread> threads_;
};

}  // namespace penstock::checkpoint
