// SPDX-License-Identifier: Apache-2.0
// Writes bytes that are there for a moment only: each call copies what it gets, and the copies are
// written while the caller makes the next ones.
//
//   window   a block of memory that is filled and then written by one transfer; some are with the
//            engine while one is filled, so their number is the memory that a write takes
//   piece    what has one sum, made from the copy: what is summed is what is written. A piece lies
//            in one window
//   tail     a window that is full ends at a block of the device. What is behind that begins the
//            next one, so that no block is written twice
//   patch    bytes that are known after those behind them (the CRC in a zip's header). Where the
//            window has left, they are written after all others
#pragma once

#include "stream/progress_clock.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/memory.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::stream {

/// Copies of one writer: five windows at most.
inline constexpr std::uint64_t kStagedWindowBytes = std::uint64_t{8} << 20;
inline constexpr std::size_t kStagedWindows = 5;

/// Bytes are cut into pieces, from their beginning, and each has a sum.
struct PieceSums {
    std::uint64_t piece_bytes = std::uint64_t{1} << 20;
    std::function<std::uint64_t(std::span<const std::byte>)> hash = {};  ///< empty: no sums
};

/// One thread. Every call throws Error.
class StagedWriter {
public:
    /// The engine and the progress outlive it. `pool`: of the windows; files that are written one
    /// after another share one.
    StagedWriter(Engine& engine, File file, ProgressClock& progress, MemoryPool& pool);
    StagedWriter(const StagedWriter&) = delete;
    StagedWriter& operator=(const StagedWriter&) = delete;
    /// Stops what is not written yet.
    ~StagedWriter();

    /// Writes memory of the host or of a GPU. It may change when the call returns. Calls in the
    /// order of the file are the quickest; any byte is written once. Returns the sums of its
    /// pieces.
    std::vector<std::uint64_t> write(std::uint64_t offset, ConstMemory bytes,
                                     const PieceSums& sums = {});
    void write(std::uint64_t offset, std::string_view text);
    /// Replaces bytes that were written.
    void patch(std::uint64_t offset, std::string_view text);
    /// Waits until all of it is written; not synced.
    void finish();

private:
    struct Flying {
        Transfer transfer;
        std::shared_ptr<Buffer> window;
        std::uint64_t bytes = 0;
    };
    std::byte* place(std::uint64_t offset, std::uint64_t bytes);
    void open(std::uint64_t offset, std::uint64_t bytes);
    void send(bool goes_on);
    Transfer begin(const TransferRequest& request);
    void await_oldest();
    void write_patches();

    Engine& engine_;
    File file_;
    ProgressClock& progress_;
    MemoryPool& pool_;
    std::shared_ptr<Buffer> window_;
    std::uint64_t begin_ = 0;   // of the window, in the file
    std::uint64_t head_ = 0;    // first byte of it in its memory, which is aligned as the file is
    std::uint64_t filled_ = 0;  // bytes
    std::deque<Flying> flying_;
    std::vector<std::pair<std::uint64_t, std::string>> patches_;
};

}  // namespace penstock::stream
