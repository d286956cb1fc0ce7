// SPDX-License-Identifier: Apache-2.0
// The sums of a file's payloads, computed on other cores in the order of the file while it is
// written. Small payloads are summed at once, on the caller's thread; if no thread can be started,
// so are the others, when they are awaited.
//
// The writer may set the pace. Sums are made several times as fast as a device writes, and making
// all of them at the beginning would take the cores from the code that submits the first writes.
#pragma once

#include "state/file_image.hpp"
#include "stream/host_windows.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace penstock::state {

class PieceSums {
public:
    static constexpr std::uint64_t kAll = ~std::uint64_t{0};

    /// Begins with the payloads before `until` in the file. The image outlives it; only its
    /// payloads and hash() are used. `tell`: called on any thread when a payload is summed that
    /// await() had not.
    explicit PieceSums(const FileImage& image, std::uint64_t until = kAll,
                       std::function<void()> tell = {});
    PieceSums(const PieceSums&) = delete;
    PieceSums& operator=(const PieceSums&) = delete;
    /// Stops the threads after their current piece.
    ~PieceSums();

    /// Allows payloads before `until`, which never decreases. One thread only.
    void let(std::uint64_t until);
    /// Waits until all pieces of a payload are summed, or the time is over (false). Throws the
    /// error of a piece of a GPU that could not be brought to the host.
    [[nodiscard]] bool await(std::size_t payload, std::chrono::nanoseconds timeout);
    /// False: the sums are made by await(), at least one piece per call.
    [[nodiscard]] bool has_threads() const { return !threads_.empty(); }
    /// Valid after await().
    [[nodiscard]] std::span<const std::uint64_t> of(std::size_t payload) const;

private:
    struct Task {
        std::size_t payload;
        std::size_t piece;
        std::uint64_t offset;  ///< in the file
    };
    void work();
    void sum(const Task& task);
    bool await_turn(std::size_t task);
    void check_failure();

    const FileImage& image_;
    const std::function<void()> tell_;
    stream::HostWindows windows_;  // for payloads of GPUs
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
    std::atomic<bool> failed_{false};
    std::vector<Task> tasks_;
    std::vector<std::size_t> first_;   // first sum of each payload; one more at the end
    std::vector<std::uint64_t> sums_;  // by payload
    std::vector<std::atomic<std::uint32_t>> left_;  // pieces left, per payload
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint32_t> let_{0};  // number of tasks that may be done
    std::atomic<bool> stopped_{false};
    std::atomic<std::uint32_t> finished_{0};  // payloads
    std::atomic<std::uint32_t> waiters_{0};
    std::atomic<std::size_t> awaited_{~std::size_t{0}};  // the payload that await() had not
    std::vector<std::thread> threads_;
};

}  // namespace penstock::state
