// SPDX-License-Identifier: Apache-2.0
// Makes files durable and closes them, while the next ones are written. Without threads it is
// done at once, by the caller.
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
    /// Drops what is not begun.
    ~FileSyncer();

    /// From the next add() on; at least this many, or as many as the system gives.
    void use_threads(std::size_t count);
    /// Nobody else writes to the file any more. Data and size only; names are the folder's. Throws
    /// what an earlier one met.
    void add(File file);
    /// Until all are durable and closed. Throws the first error: what that file holds may be lost.
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
