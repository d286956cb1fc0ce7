// SPDX-License-Identifier: Apache-2.0
// Makes files durable and closes them, while the next ones are written. Without threads the caller
// does it at once.
#pragma once

#include <penstock/file.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::stream {

class FileSyncer {
public:
    FileSyncer() = default;
    FileSyncer(const FileSyncer&) = delete;
    FileSyncer& operator=(const FileSyncer&) = delete;
    /// Drops files that were not begun.
    ~FileSyncer();

    /// Sets the threads from the next add() on; at least this many, or as many as the system
    /// allows.
    void use_threads(std::size_t count);
    /// Takes a file that nobody else writes to any more. Data and size only; names belong to the
    /// folder. Throws the error of an earlier file.
    void add(File file);
    /// Waits until all are durable and closed. Throws the first error: the data of that file may be
    /// lost.
    void finish();

private:
    void work();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<File> files_;
    std::size_t busy_ = 0;
    bool stopping_ = false;
    std::exception_ptr error_;
    std::vector<std::thread> threads_;
};

}  // namespace penstock::stream
