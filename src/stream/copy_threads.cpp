// SPDX-License-Identifier: Apache-2.0
#include "stream/copy_threads.hpp"

#include "base/start_threads.hpp"

#include <penstock/memory.hpp>

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace penstock::stream {

namespace {

constexpr unsigned kThreadsMax = 16;  // more than memory has bandwidth for

}  // namespace

CopyThreads::CopyThreads(unsigned threads)
    : threads_(threads != 0 ? threads : std::min(usable_processors(), kThreadsMax)) {}

CopyThreads::~CopyThreads() {
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : others_) {
        thread.join();
    }
}

void CopyThreads::run(std::size_t count, const std::function<void(std::size_t)>& work) {
    const std::lock_guard<std::mutex> one(run_mutex_);
    if (count < 2 || threads_ < 2) {
        for (std::size_t i = 0; i < count; ++i) {
            work(i);
        }
        return;
    }
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        base::start_threads(others_, threads_ - 1, [this] { loop(); });
        work_ = &work;
        count_ = count;
        next_.store(0, std::memory_order_relaxed);
        busy_ = static_cast<unsigned>(others_.size());
        ++round_;
    }
    wake_.notify_all();
    draw();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
}

void CopyThreads::draw() {
    while (true) {
        const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= count_) {
            return;
        }
        (*work_)(i);
    }
}

void CopyThreads::loop() {
    std::uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        wake_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) {
            return;
        }
        seen = round_;
        lock.unlock();
        draw();
        lock.lock();
        if (--busy_ == 0) {
            done_.notify_all();
        }
    }
}

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) {
    stream_piece(to, from, bytes, nullptr);
    finish_streaming();
}

void stream_piece(std::byte* to, const std::byte* from, std::size_t bytes, const std::byte* next) {
#if defined(__SSE2__)
    constexpr std::size_t kLine = 64;
    const std::size_t head =
        std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
    std::memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    const std::byte* ahead = next == nullptr ? from : next;
    for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine, ahead += kLine) {
        __builtin_prefetch(ahead);
        const auto* in = reinterpret_cast<const __m128i*>(from);
        auto* out = reinterpret_cast<__m128i*>(to);
        const __m128i a = _mm_loadu_si128(in);
        const __m128i b = _mm_loadu_si128(in + 1);
        const __m128i c = _mm_loadu_si128(in + 2);
        const __m128i d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
#endif
    std::memcpy(to, from, bytes);
}

void finish_streaming() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace penstock::stream
