// SPDX-License-Identifier: Apache-2.0
#include "store/shard_writer.hpp"

#include "base/align.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock::store {

namespace {

constexpr std::uint64_t kRangeBytes = std::uint64_t{16} << 20;
// Limit on ranges of a lane with the engine: at a device there are fewer than two.
constexpr std::size_t kRangesAtOnce = 8;
// Limit on gathered files, however much the engine would take inline.
constexpr std::uint64_t kSmallBytesMax = std::uint64_t{16} << 20;
constexpr std::uint64_t kPageCacheBytesMax = std::uint64_t{1} << 20;
constexpr std::size_t kSyncThreadsMax = 8;
// Index and manifest, concurrently with the last shard: syncs at the same time share a commit of
// the journal.
constexpr std::size_t kSyncThreadsMore = 2;

void add_extent(TransferRequest& request, const format::PieceSlice& slice, const ShardFile& shard) {
    ConstMemory memory(reinterpret_cast<const std::byte*>(slice.literal), slice.bytes);
    if (slice.kind == format::Piece::Kind::kPayload) {
        const ConstMemory& payload = shard.payloads[slice.payload];
        memory = {payload.data + slice.payload_offset, slice.bytes, payload.kind, payload.device};
    }
    request.extents.push_back({slice.offset, to_write(memory), 0});
}

}  // namespace

TransferRequest range_request(const ShardFile& shard, const File& file, format::FileRange range) {
    TransferRequest request;
    request.write = true;
    request.files.push_back(file);
    for (const format::PieceSlice& slice : shard.layout->slices(range)) {
        add_extent(request, slice, shard);
    }
    return request;
}

std::vector<format::FileRange> ranges_of(const ShardFile& shard, std::uint64_t block_bytes) {
    return format::cut_ranges(shard.layout->total_bytes(), block_bytes, kRangeBytes);
}

bool ShardWriter::is_small(const ShardFile& shard) const {
    const std::uint64_t limit = std::min(engine_.options().inline_bytes_max, kSmallBytesMax);
    return shard.layout->total_bytes() <= limit &&
           std::all_of(shard.payloads.begin(), shard.payloads.end(),
                       [](const ConstMemory& memory) { return memory.kind == MemoryKind::kHost; });
}

void ShardWriter::write_small(const ShardFile& shard, stream::ProgressClock& progress) {
    std::vector<std::byte> bytes(shard.layout->total_bytes());
    std::vector<std::span<const std::byte>> payloads;
    for (const ConstMemory& memory : shard.payloads) {
        payloads.push_back(memory.span());
    }
    shard.layout->copy({0, bytes.size()}, payloads, bytes);
    File file = files_.open(shard.path, {.access = Access::kWrite,
                                         .create = true,
                                         .exclusive = true,
                                         .cache = CachePolicy::kCached});
    stream::write_when_room(engine_, file, bytes, 0);
    syncer_.add(std::move(file));
    progress.add(bytes.size());
    progress.tick();
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
void ShardWriter::begin_file(Lane& lane, const ShardFile& shard) {
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
    open->left = open->ranges.size();
    lane.file = open;
    if (lane.begin == Clock::time_point{}) {
        lane.begin = Clock::now();
    }
    syncer_.use_threads(std::min(lanes_.size() + kSyncThreadsMore, kSyncThreadsMax));
}

stream::PumpUnitPtr ShardWriter::next(std::size_t number) {
    Lane& lane = lanes_[number];
    if (!lane.file) {
        if (lane.waiting.empty()) {
            return nullptr;
        }
        begin_file(lane, *lane.waiting.front());
        lane.waiting.pop_front();
    }
    Open& open = *lane.file;
    const format::FileRange range = open.ranges[open.next];
    auto unit = std::make_unique<Range>();
    unit->request = range_request(*open.shard, open.file, range);
    unit->bytes = range.end - range.begin;
    unit->file = lane.file;
    if (++open.next == open.ranges.size()) {
        lane.file.reset();
    }
    return unit;
}

void ShardWriter::ended(stream::PumpUnitPtr unit, Transfer transfer) {
    transfer.wait();
    progress_->add(unit->bytes);
    Lane& lane = lanes_[unit->lane];
    lane.written_bytes += unit->bytes;
    lane.end = Clock::now();
    Open& open = *static_cast<Range&>(*unit).file;
    if (--open.left == 0) {
        syncer_.add(std::move(open.file));
    }
}

stream::OwnWork ShardWriter::own_work() {
    if (beside_ == nullptr) {
        return stream::OwnWork::kOver;
    }
    if (!(*beside_)()) {
        beside_ = nullptr;
    }
    return stream::OwnWork::kDid;
}

void ShardWriter::write(std::span<const ShardFile> shards, const std::function<bool()>& beside,
                        stream::ProgressClock& progress) {
    for (const ShardFile& shard : shards) {
        if (!is_small(shard)) {
            lanes_[shard.lane].waiting.push_back(&shard);
        }
    }
    beside_ = &beside;
    progress_ = &progress;
    stream::Pump(engine_, progress, {kRangesAtOnce * kRangeBytes, kRangesAtOnce})
        .run(*this, lanes_.size());
    for (const ShardFile& shard : shards) {
        if (is_small(shard)) {
            write_small(shard, progress);
        }
    }
}

std::vector<double> ShardWriter::speeds() const {
    constexpr std::uint64_t kBytesThatTell = std::uint64_t{64} << 20;
    std::vector<double> speeds;
    for (const Lane& lane : lanes_) {
        const double seconds = std::chrono::duration<double>(lane.end - lane.begin).count();
        const bool tells = lane.written_bytes >= kBytesThatTell && seconds > 0;
        speeds.push_back(tells ? static_cast<double>(lane.written_bytes) / seconds : 0);
    }
    return speeds;
}

}  // namespace penstock::store
