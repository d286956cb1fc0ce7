// SPDX-License-Identifier: Apache-2.0
#include "store/write/shard_writer.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock::store {

namespace {

constexpr std::uint64_t kBytesAtOnce = std::uint64_t{128} << 20;
// Limit on ranges of a queue with the engine: at a device there are fewer than two.
constexpr std::size_t kRangesAtOnce = 8;
// Ranges of a queue that are summed before there is room to write them: no more, since what is
// summed just before the write shows more of what changes.
constexpr std::size_t kRangesAhead = 2;
// Limit on gathered files, however much the engine would take inline.
constexpr std::uint64_t kSmallBytesMax = std::uint64_t{16} << 20;
constexpr std::uint64_t kPageCacheBytesMax = std::uint64_t{1} << 20;
constexpr std::size_t kSyncThreadsMax = 8;
// Index and manifest, concurrently with the last shard: syncs at the same time share a commit of
// the journal.
constexpr std::size_t kSyncThreadsMore = 2;

void add_extents(TransferRequest& request, const format::PieceSlice& slice, const ShardFile& shard,
                 const stream::WindowSums& sums) {
    if (slice.kind != format::Piece::Kind::kPayload) {
        const ConstMemory memory(reinterpret_cast<const std::byte*>(slice.literal), slice.bytes);
        request.extents.push_back({slice.offset, to_write(memory), 0});
        return;
    }
    std::uint64_t offset = slice.offset;
    for (const ConstMemory& memory :
         sums.written_from(shard.sources[slice.payload], slice.payload_offset, slice.bytes)) {
        request.extents.push_back({offset, to_write(memory), 0});
        offset += memory.bytes;
    }
}

// One window a range.
std::vector<std::size_t> windows_of(const ShardFile& shard,
                                    std::span<const format::FileRange> ranges,
                                    stream::WindowSums& sums) {
    std::vector<std::size_t> windows;
    for (const format::FileRange& range : ranges) {
        std::vector<stream::WindowSums::Pieces> pieces;
        for (const format::PieceSlice& slice : shard.layout->slices(range)) {
            if (slice.kind == format::Piece::Kind::kPayload) {
                pieces.push_back(sums.pieces(shard.sources[slice.payload], slice.payload_offset,
                                             slice.payload_offset + slice.bytes));
            }
        }
        windows.push_back(sums.add(std::move(pieces)));
    }
    return windows;
}

// Ends the threads of the sums before the pump that they wake.
class StopAtEnd {
public:
    explicit StopAtEnd(stream::WindowSums& sums) : sums_(sums) {}
    StopAtEnd(const StopAtEnd&) = delete;
    StopAtEnd& operator=(const StopAtEnd&) = delete;
    ~StopAtEnd() { sums_.stop(); }

private:
    stream::WindowSums& sums_;
};

}  // namespace

TransferRequest range_request(const ShardFile& shard, const File& file, format::FileRange range,
                              const stream::WindowSums& sums) {
    TransferRequest request;
    request.write = true;
    request.files.push_back(file);
    for (const format::PieceSlice& slice : shard.layout->slices(range)) {
        add_extents(request, slice, shard, sums);
    }
    return request;
}

std::vector<format::FileRange> ranges_of(const ShardFile& shard, std::uint64_t block_bytes) {
    const std::uint64_t bytes = shard.layout->total_bytes();
    return format::cut_ranges(bytes, block_bytes, stream::window_bytes(bytes));
}

bool ShardWriter::is_small(const ShardFile& shard) const {
    const std::uint64_t limit = std::min(engine_.options().inline_bytes_max, kSmallBytesMax);
    return shard.layout->total_bytes() <= limit &&
           std::all_of(shard.payloads.begin(), shard.payloads.end(),
                       [](const ConstMemory& memory) { return memory.kind == MemoryKind::kHost; });
}

void ShardWriter::write_small(const ShardFile& shard) {
    sums_->look_at(shard.sources);
    std::vector<std::byte> bytes(shard.layout->total_bytes());
    std::vector<std::span<const std::byte>> payloads;
    for (const ConstMemory& memory : shard.payloads) {
        payloads.push_back(memory.span());
    }
    shard.layout->copy({0, bytes.size()}, payloads, bytes);
    for (const format::Piece& piece : shard.layout->pieces()) {
        if (piece.kind == format::Piece::Kind::kPayload) {
            sums_->sum_copy(shard.sources[piece.source],
                            std::span(bytes).subspan(piece.offset, piece.bytes));
        }
    }
    File file = files_.open(shard.path, {.access = Access::kWrite,
                                         .create = true,
                                         .exclusive = true,
                                         .cache = CachePolicy::kCached});
    stream::write_when_room(engine_, file, bytes, 0);
    syncer_.add(std::move(file));
    progress_->add(bytes.size());
    progress_->tick();
}

void ShardWriter::write_text(const std::string& path, std::string_view text) {
    const CachePolicy cache =
        text.size() <= kPageCacheBytesMax ? CachePolicy::kCached : CachePolicy::kAuto;
    File file = files_.open(
        path, {.access = Access::kWrite, .create = true, .exclusive = true, .cache = cache});
    if (!text.empty()) {
        stream::write_when_room(engine_, file, std::as_bytes(std::span(text)), 0);
    }
    syncer_.add(std::move(file));
}

// Preallocates first, so that a full disk is reported before the first byte of the file.
void ShardWriter::begin_file(FolderQueue& queue, const ShardFile& shard) {
    const auto open = std::make_shared<Open>();
    open->shard = &shard;
    open->file =
        files_.open(shard.path, {.access = Access::kWrite, .create = true, .exclusive = true});
    const FileInfo info = open->file.info();
    if (!info.direct && note_.empty()) {
        note_ = fmt::format("written through the page cache, which is slower: {}", info.reason);
    }
    open->file.preallocate(0, shard.layout->total_bytes());
    const std::uint64_t block = std::max(
        {base::kPageBytes, std::uint64_t{info.block_bytes}, std::uint64_t{info.write_align}});
    open->ranges = ranges_of(shard, block);
    open->windows = windows_of(shard, open->ranges, *sums_);
    open->left = open->ranges.size();
    PENSTOCK_ASSERT(open->windows.size() == open->left);
    queue.file = open;
    if (queue.begin == Clock::time_point{}) {
        queue.begin = Clock::now();
    }
    syncer_.use_threads(std::min(queues_.size() + kSyncThreadsMore, kSyncThreadsMax));
}

stream::PumpUnitPtr ShardWriter::next(std::size_t number) {
    FolderQueue& queue = queues_[number];
    if (!queue.file) {
        if (queue.waiting.empty()) {
            return nullptr;
        }
        begin_file(queue, *queue.waiting.front());
        queue.waiting.pop_front();
    }
    Open& open = *queue.file;
    const std::size_t ahead = std::min(open.ranges.size(), open.next + kRangesAhead);
    for (; open.asked < ahead && sums_->has_room(); ++open.asked) {
        sums_->ask(open.windows[open.asked]);
    }
    if (open.next == open.asked || !sums_->is_ready(open.windows[open.next])) {
        return nullptr;
    }
    PENSTOCK_ASSERT(open.next < open.ranges.size());
    const format::FileRange range = open.ranges[open.next];
    auto unit = std::make_unique<Range>();
    unit->window = open.windows[open.next];
    unit->request = range_request(*open.shard, open.file, range, *sums_);
    unit->bytes = range.end - range.begin;
    unit->file = queue.file;
    if (++open.next == open.ranges.size()) {
        queue.file.reset();
    }
    return unit;
}

void ShardWriter::ended(stream::PumpUnitPtr unit, Transfer transfer) {
    transfer.wait();
    progress_->add(unit->bytes);
    FolderQueue& queue = queues_[unit->queue];
    queue.written_bytes += unit->bytes;
    queue.end = Clock::now();
    sums_->ended(static_cast<Range&>(*unit).window);
    Open& open = *static_cast<Range&>(*unit).file;
    PENSTOCK_ASSERT(open.left != 0);
    if (--open.left == 0) {
        syncer_.add(std::move(open.file));
    }
}

// Every range that the engine has is summed.
stream::OwnWork ShardWriter::own_work() {
    if (!small_.empty()) {
        const ShardFile* const shard = small_.front();
        small_.pop_front();
        write_small(*shard);
        return stream::OwnWork::kDid;
    }
    if (sums_->work()) {
        return stream::OwnWork::kDid;
    }
    const bool summed = std::ranges::all_of(queues_, [](const FolderQueue& queue) {
        return queue.file == nullptr && queue.waiting.empty();
    });
    if (summed && when_summed_ != nullptr) {
        (*std::exchange(when_summed_, nullptr))();
        return stream::OwnWork::kDid;
    }
    return summed && sums_->is_over() ? stream::OwnWork::kOver : stream::OwnWork::kNone;
}

void ShardWriter::write(std::span<const ShardFile> shards, stream::WindowSums& sums,
                        const std::function<void()>& when_summed, stream::ProgressClock& progress) {
    for (const ShardFile& shard : shards) {
        PENSTOCK_ASSERT(shard.queue < queues_.size());
        if (is_small(shard)) {
            small_.push_back(&shard);
        } else {
            queues_[shard.queue].waiting.push_back(&shard);
        }
    }
    sums_ = &sums;
    when_summed_ = &when_summed;
    progress_ = &progress;
    stream::Pump pump(engine_, progress, {kBytesAtOnce, kRangesAtOnce});
    const StopAtEnd stop(sums);
    sums.start([&pump] { pump.wake(); });
    pump.run(*this, queues_.size());
}

std::vector<double> ShardWriter::speeds() const {
    constexpr std::uint64_t kBytesThatTell = std::uint64_t{64} << 20;
    std::vector<double> speeds;
    for (const FolderQueue& queue : queues_) {
        const double seconds = std::chrono::duration<double>(queue.end - queue.begin).count();
        const bool tells = queue.written_bytes >= kBytesThatTell && seconds > 0;
        speeds.push_back(tells ? static_cast<double>(queue.written_bytes) / seconds : 0);
    }
    return speeds;
}

}  // namespace penstock::store
