// SPDX-License-Identifier: Apache-2.0
// Writes files of a checkpoint from the caller's own memory, to several folders concurrently.
//
//   Each folder has a queue: its files one after the other, each preallocated and cut into ranges
//   of some MiB at blocks of the device, a few ranges with the engine at a time. So depth is kept
//   from one range to the next, other transfers of the same class get a turn, and progress is
//   reported. A file whose ranges are all written is synced by a thread while the next one is
//   written.
//
//   Files that fit into one small buffer are gathered there and written by the caller: no thread,
//   no preallocation, one call. Files with memory of a GPU are not gathered.
//
//   Sums are made around the write of each range (stream/window_sums.hpp), those of gathered files
//   from the buffer.
//
// A range is a piece of a file that shares no block with its neighbours, so that other processes
// may write the rest of it.
#pragma once

#include "format/file_layout.hpp"
#include "stream/file_syncer.hpp"
#include "stream/progress_clock.hpp"
#include "stream/pump.hpp"
#include "stream/window_sums.hpp"

#include <penstock/checkpoint.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

/// A file to be written. Its folder exists; the file does not.
struct ShardFile {
    std::string path;
    std::uint32_t queue = 0;  ///< folder
    const format::FileLayout* layout = nullptr;
    std::vector<ConstMemory> payloads;  ///< by their number in the layout; also of GPUs
    std::vector<std::size_t> sources;   ///< of the sums, one per payload
};

/// The request for one range of it. Literals point into the layout; payloads are where `sums` has
/// them.
[[nodiscard]] TransferRequest range_request(const ShardFile& shard, const File& file,
                                            format::FileRange range,
                                            const stream::WindowSums& sums);
/// The ranges of a file, in its order.
[[nodiscard]] std::vector<format::FileRange> ranges_of(const ShardFile& shard,
                                                       std::uint64_t block_bytes);

class ShardWriter final : stream::PumpSource {
public:
    ShardWriter(Engine& engine, const FileSystem& files, std::size_t queues)
        : engine_(engine), files_(files), queues_(queues) {}

    /// Writes all of them, and sums what it writes. `when_summed` is called while the last writes
    /// run. Durable after finish(). Throws Error, also kChanged.
    void write(std::span<const ShardFile> shards, stream::WindowSums& sums,
               const std::function<void()>& when_summed, stream::ProgressClock& progress);
    /// Writes a small file.
    void write_text(const std::string& path, std::string_view text);
    /// Data and sizes of all files are durable, and they are closed. Throws Error.
    void finish() { syncer_.finish(); }

    /// Bytes a second, one per queue; 0 if too little was written to measure.
    [[nodiscard]] std::vector<double> speeds() const;
    /// Empty, or the reason why a file was written through the page cache.
    [[nodiscard]] const std::string& note() const { return note_; }

private:
    using Clock = std::chrono::steady_clock;
    struct Open {  // a file that is being written
        const ShardFile* shard;
        File file;
        std::vector<format::FileRange> ranges;
        std::vector<std::size_t> windows;  ///< of the sums, one per range
        std::size_t asked = 0;             ///< range to be summed
        std::size_t next = 0;              ///< range to be submitted
        std::size_t left = 0;              ///< ranges that are not finished
    };
    struct Range : stream::PumpUnit {
        std::shared_ptr<Open> file;
        std::size_t window = 0;
    };
    struct FolderQueue {
        std::deque<const ShardFile*> waiting;
        std::shared_ptr<Open> file;  ///< the file with ranges to be submitted, or none
        std::uint64_t written_bytes = 0;
        Clock::time_point begin;
        Clock::time_point end;
    };

    [[nodiscard]] bool is_small(const ShardFile& shard) const;
    void write_small(const ShardFile& shard);
    void begin_file(FolderQueue& queue, const ShardFile& shard);
    stream::PumpUnitPtr next(std::size_t number) override;
    void ended(stream::PumpUnitPtr unit, Transfer transfer) override;
    stream::OwnWork own_work() override;

    Engine& engine_;
    const FileSystem& files_;
    std::vector<FolderQueue> queues_;
    stream::FileSyncer syncer_;
    std::string note_;

    // Set during write().
    stream::WindowSums* sums_ = nullptr;
    const std::function<void()>* when_summed_ = nullptr;  ///< nullptr: it was called
    std::deque<const ShardFile*> small_;                  ///< not written yet
    stream::ProgressClock* progress_ = nullptr;
};

}  // namespace penstock::store
