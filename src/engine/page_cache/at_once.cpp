// SPDX-License-Identifier: Apache-2.0
// Small reads and writes that the page cache serves, on the thread that waits. One extent is one
// call of the kernel's, as a program's own loop makes it, and no transfer, which would cost three
// times that. A list is copied without a hop to other threads.
//
// Where a try does not move every byte, the transfer does the whole again, and says what is wrong:
// so there are no errors here, and nothing waits for a device.
//
// Each has an inline lane meanwhile, also while transfers run, which are at the device: a fork and
// close() wait for those, and the counters of a lane have one writer.
#include "engine/core.hpp"
#include "engine/page_cache/cached_read.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>

namespace penstock::engine {

namespace {

constexpr std::uint64_t kOffsetMax = INT64_MAX;  // the kernel's (loff_t)

// Limit a list. From there on several threads copy sooner.
constexpr std::uint64_t kCopiedBytesMax = 2 << 20;
constexpr std::uint64_t kCopiedExtentsMax = 1024;

bool is_plain(Memory memory, std::uint64_t offset, std::uint64_t bytes_max) {
    return memory.kind == MemoryKind::kHost && memory.data != nullptr && memory.bytes != 0 &&
           memory.bytes <= bytes_max && offset <= kOffsetMax - memory.bytes;
}

bool is_plain(const TransferOptions& options) {
    return options.cache == CachePolicy::kAuto && options.priority <= Priority::kBackground &&
           options.depth_limit.handle() == nullptr;
}

std::uint64_t moved(std::int64_t result) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(result, 0));
}

}  // namespace

std::optional<Domain::InlineLane> Core::lane_at_once(const os::File& file) {
    if (!options_.domain.threads || options_.inline_bytes_max == 0 || options_.transfers_max != 0 ||
        options_.cache != CachePolicy::kAuto || refusing_.load(std::memory_order_relaxed)) {
        return std::nullopt;
    }
    const auto domain = domain_of(file);
    if (!domain) {
        return std::nullopt;
    }
    auto lane = (*domain)->take_lane_past_transfers();
    return lane && !refusing_.load() ? std::move(lane) : std::nullopt;
}

std::optional<std::uint64_t> Core::read_at_once(os::File& file, Memory into, std::uint64_t offset,
                                                const TransferOptions& options) {
    const os::FileInfo& info = file.info();
    const bool in_memory = info.in_memory && !info.geometry.direct;
    if (!in_memory && !(info.asks_cache && file.cache_history().expects_cached(offset))) {
        return std::nullopt;
    }
    if (!is_plain(into, offset, options_.inline_bytes_max) || !is_plain(options) || options.sync ||
        info.access == Access::kWrite) {
        return std::nullopt;
    }
    auto lane = lane_at_once(file);
    if (!lane) {
        return std::nullopt;
    }
    const iovec piece{into.data, into.bytes};
    const std::int64_t got = in_memory ? file.read_at(os::Lane::kBuffered, offset, {&piece, 1})
                                       : file.read_cached(offset, {&piece, 1});
    if (moved(got) != into.bytes) {
        return std::nullopt;
    }
    if (!in_memory) {
        static_cast<void>(file.cache_history().in_sequence(offset, into.bytes));
    }
    Counters& counters = lane->channel().counters();
    counters.requests.add(1);
    (in_memory ? counters.bytes_read : counters.bytes_cached).add(into.bytes);
    return into.bytes;
}

std::optional<std::uint64_t> Core::write_at_once(os::File& file, Memory data, std::uint64_t offset,
                                                 const TransferOptions& options) {
    const os::FileInfo& info = file.info();
    const bool by_cache = info.asks_cache && info.geometry.direct;
    if ((!by_cache && !info.in_memory) || info.append || info.access == Access::kRead ||
        options.sync || options.allow_short || !is_plain(options) ||
        !is_plain(data, offset, options_.domain.channel.block_bytes)) {
        return std::nullopt;
    }
    auto lane = lane_at_once(file);
    if (!lane) {
        return std::nullopt;
    }
    std::unique_lock<std::mutex> gate;
    if (by_cache) {
        gate = std::unique_lock(file.edge_gate());
    }
    const iovec piece{data.data, data.bytes};
    if (moved(file.write_at(os::Lane::kBuffered, offset, {&piece, 1})) != data.bytes) {
        return std::nullopt;
    }
    Counters& counters = lane->channel().counters();
    counters.requests.add(1);
    counters.edge_requests.add(by_cache ? 1 : 0);
    counters.bytes_written.add(data.bytes);
    return data.bytes;
}

// A read whose files have had what was read of them in the page cache. The caller copies that
// sooner than others can be asked to; they do all of it where some is not there.
bool Core::copy_cached(Window& window) {
    Transfer& transfer = *window.transfer;
    const Extents& extents = transfer.extents;
    const auto expects_cached = [](const auto& file) {
        return file != nullptr && (file->info().in_memory ||
                                   (file->info().asks_cache && file->cache_history().warm()));
    };
    if (transfer.op != Op::kRead || transfer.cache != CachePolicy::kAuto ||
        transfer.total_bytes > kCopiedBytesMax || extents.count() > kCopiedExtentsMax ||
        extents.count() == 0 ||
        !std::all_of(transfer.files.begin(), transfer.files.end(), expects_cached)) {
        return false;
    }
    const auto domain = domain_of(*transfer.files.front());
    auto lane = domain ? (*domain)->take_lane_past_transfers() : std::nullopt;
    if (!lane) {
        return false;
    }
    std::uint64_t requests = 0;
    std::uint64_t in_memory_bytes = 0;
    for (std::uint64_t begin = 0, end = 0; begin < extents.count(); begin = end, ++requests) {
        const std::uint32_t number = extents[begin].file;
        std::uint64_t bytes = 0;
        for (; end < extents.count() && extents[end].file == number; ++end) {
            bytes += extents[end].memory.bytes;
        }
        os::File& file = *transfer.files[number];
        if (!read_where_cached(file, extents, begin, end)) {
            file.cache_history().missed();
            return false;
        }
        in_memory_bytes += file.info().in_memory ? bytes : 0;
    }
    Counters& counters = lane->channel().counters();
    counters.requests.add(requests);
    counters.bytes_read.add(in_memory_bytes);
    counters.bytes_cached.add(transfer.total_bytes - in_memory_bytes);
    lane.reset();
    parts_are_through(window);
    return true;
}

}  // namespace penstock::engine
