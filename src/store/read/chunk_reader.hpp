// SPDX-License-Identifier: Apache-2.0
// Reads pieces of shards, and checks their chunks concurrently.
//
//   queue      a folder, that is, a device: its pieces in the order of its files, some MiB of them
//             in one transfer, and enough transfers with the engine to keep it busy
//   touched   the caller's memory is faulted in ahead of its reads, by helper threads, or by this
//   one
//             while it would wait
//   checked   this thread hashes data that has arrived while it would wait, and helper threads join
//             when there is much; then the data is copied out, if it is not in its place already.
//             What went straight to a GPU is copied back for that, some MiB at a time: what is
//             checked is what the GPU has
//
// Our own memory is bounded by the limit on what is in flight, however much is read.
#pragma once

#include "store/read/read_plan.hpp"
#include "store/write/shard_files.hpp"
#include "stream/host_windows.hpp"
#include "stream/progress_clock.hpp"
#include "stream/pump.hpp"

#include <penstock/engine.hpp>
#include <penstock/memory.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock::store {

/// A range that differs from what was saved, or could not be read.
struct BadChunks {
    std::size_t part = 0;
    std::uint64_t offset = 0;  ///< in the slice
    std::uint64_t bytes = 0;
    std::string why;  ///< empty: a checksum mismatch
};

struct ChunkReadOptions {
    bool verify = true;  ///< checks the checksums, if there are any
    /// Collects all errors in bad(); otherwise the first one is thrown: kDamaged, or the error of
    /// the system.
    bool find_all = false;
    CachePolicy cache = CachePolicy::kAuto;
    Priority priority = Priority::kNormal;
};

class ChunkReader final : stream::PumpSource {
public:
    ChunkReader(Engine& engine, MemoryPool& memory, ShardFiles& files,
                std::span<const SlicePart> parts, const ChunkReadOptions& options,
                stream::ProgressClock& progress);
    /// Nothing touches the caller's memory afterwards.
    ~ChunkReader() override;

    /// Bytes read from storage.
    std::uint64_t run(std::vector<SlicePiece> pieces);
    /// In the order of the files.
    [[nodiscard]] std::vector<BadChunks> bad();

private:
    enum class Touching : std::uint8_t { kWaits, kRuns, kOver };
    struct Batch : stream::PumpUnit {
        std::vector<SlicePiece> pieces;
        std::vector<std::byte*> memory;  // destination of each piece
        Buffer ours;
        Touching touching = Touching::kOver;
    };
    using BatchPtr = std::unique_ptr<Batch>;
    using Waiting = std::deque<BatchPtr>;  // batches that were not begun

    void cut(std::vector<SlicePiece> pieces);
    void make_request(Batch& batch);
    stream::PumpUnitPtr next(std::size_t number) override;
    void ended(stream::PumpUnitPtr unit, Transfer transfer) override;
    stream::OwnWork own_work() override;
    [[nodiscard]] Batch* take_untouched();
    void touch(Batch& batch) noexcept;
    void check_one_by_one(Batch& batch);
    void check_later(BatchPtr batch);
    [[nodiscard]] BatchPtr take_arrived();
    void check(Batch& batch) noexcept;
    void check_piece(const SlicePiece& piece, const std::byte* memory);
    void check_chunks(std::size_t part, std::uint64_t first, std::span<const std::byte> bytes);
    [[nodiscard]] Memory place_of(const SlicePiece& piece) const;
    void found(BadChunks bad);
    void raise_first();
    void help();

    [[nodiscard]] const Shard& shard_of(const SlicePiece& piece) const;
    [[nodiscard]] std::uint64_t in_file(const SlicePiece& piece) const;

    Engine& engine_;
    MemoryPool& pool_;
    ShardFiles& files_;
    std::span<const SlicePart> parts_;
    const ChunkReadOptions options_;
    stream::HostWindows windows_;  // what went straight to a GPU is checked through them
    stream::ProgressClock& progress_;
    std::mutex mutex_;
    std::condition_variable work_;  // a batch arrived or may be touched, or the reading is over
    std::vector<Waiting> queues_;
    std::deque<BatchPtr> arrived_;
    std::size_t unchecked_ = 0;     // batches
    std::uint64_t held_bytes_ = 0;  // from submission to check
    std::vector<BadChunks> bad_;
    std::exception_ptr failure_;  // of a check: no memory
    bool over_ = false;
    stream::Pump pump_;  // after the memory that its batches are read to
    std::vector<std::jthread> helpers_;
};

/// The error that read() throws for it.
[[noreturn]] void raise_bad(const BadChunks& bad, const SlicePart& part, const std::string& path);

}  // namespace penstock::store
