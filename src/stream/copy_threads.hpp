// SPDX-License-Identifier: Apache-2.0
// A few threads that copy memory, kept between copies: starting threads costs as much as copying
// some MB. The caller of run() works too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace penstock::stream {

class CopyThreads {
public:
    /// `threads`: working at once, the caller's included; 0: one per core, 16 at most. They start
    /// with the first run() that has work for them, as many as the system allows.
    explicit CopyThreads(unsigned threads = 0);
    CopyThreads(const CopyThreads&) = delete;
    CopyThreads& operator=(const CopyThreads&) = delete;
    ~CopyThreads();

    /// Calls work(0) ... work(count - 1), each once, in any order, and returns when all are
    /// finished. `work` must not throw. One run at a time: others wait.
    void run(std::size_t count, const std::function<void(std::size_t)>& work);

private:
    void loop();
    void draw();

    const unsigned threads_;
    std::mutex run_mutex_;  ///< held during run()

    std::mutex mutex_;  ///< guards everything below
    std::condition_variable wake_;
    std::condition_variable done_;
    std::vector<std::thread> others_;
    std::uint64_t round_ = 0;
    unsigned busy_ = 0;  ///< threads that have not yet seen the end of this round
    bool stop_ = false;

    // The current round; written before the threads are woken.
    const std::function<void(std::size_t)>* work_ = nullptr;
    std::size_t count_ = 0;
    std::atomic<std::size_t> next_{0};
};

/// memcpy for memory that is not read soon: past the caches if the processor can, so that the
/// destination is not read before it is written.
void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes);

/// The same for one piece of several; finish_streaming() is to follow the last, before any other
/// thread reads them. `next`: as many bytes that are copied soon, which the caches are asked for
/// meanwhile; nullptr: none.
void stream_piece(std::byte* to, const std::byte* from, std::size_t bytes, const std::byte* next);
void finish_streaming();

}  // namespace penstock::stream
