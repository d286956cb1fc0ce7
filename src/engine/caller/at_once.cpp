// SPDX-License-Identifier: Apache-2.0
// Small reads and writes on the thread that waits, by one call of the kernel's, as a program's own
// loop makes it. A transfer would cost three times that, so one extent is none:
//
//   cached read   where the file's last reads were cached, or in sequence; also while transfers
//                 run, for it takes nothing of the device but after a miss
//   direct read   aligned, where the last reads were not cached and nothing is before it
//   write         through the page cache
//
// What is of a device goes the same ways, by pinned memory and a copy that is waited for.
//
// Where a try does not move every byte, the transfer does the whole again, and says what is wrong:
// so there are no errors here. Each try has a lent channel: a fork and close() wait for those, and
// the counters of a lent channel have one writer.
#include "base/align.hpp"
#include "engine/core.hpp"
#include "engine/page_cache/cached_read.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>

namespace penstock::engine {

namespace {

bool is_plain(Memory memory, std::uint64_t offset, std::uint64_t bytes_max) {
    return memory.kind == MemoryKind::kHost && memory.data != nullptr && memory.bytes != 0 &&
           memory.bytes <= bytes_max && offset <= kOffsetMax - memory.bytes;
}

bool is_plain(const TransferOptions& options) {
    return options.priority <= Priority::kBackground && options.depth_limit.handle() == nullptr;
}

std::uint64_t moved(std::int64_t result) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(result, 0));
}

}  // namespace

// Past transfers goes what takes nothing of the device.
Domain::LentChannel Core::lent_at_once(const os::File& file, bool past_transfers) {
    if (!options_.domain.threads || options_.transfers_max != 0 ||
        refusing_.load(std::memory_order_relaxed)) {
        return {};
    }
    const auto domain = domain_of(file);
    if (!domain) {
        return {};
    }
    auto lent = (*domain)->lend_at_once(past_transfers);
    if (refusing_.load()) {
        lent.give_back();
    }
    return lent;
}

// A file that is asked for its pages goes this way between two questions, which are the transfers'.
Core::AtOnce Core::way_at_once(os::File& file, Memory into, std::uint64_t offset,
                               const TransferOptions& options) const {
    const os::FileInfo& info = file.info();
    const os::Geometry& geometry = info.geometry;
    if (!geometry.direct) {
        return info.in_memory ? AtOnce::kInMemory : info.small ? AtOnce::kCached : AtOnce::kNone;
    }
    os::CacheHistory& history = file.cache_history();
    const bool asks = info.asks_cache && options.cache == CachePolicy::kAuto &&
                      options_.cache == CachePolicy::kAuto;
    if (asks && history.expects_cached(offset)) {
        return AtOnce::kCached;
    }
    // The end of a file may lie within a block, which a device moves whole.
    const std::uint64_t align = std::max(geometry.read_align, geometry.memory_align);
    const bool straight = base::is_aligned(offset | into.bytes, align) &&
                          base::is_aligned(into.data, geometry.memory_align);
    const bool past_cache =
        options.cache != CachePolicy::kCached && options_.cache != CachePolicy::kCached;
    if (!straight || !past_cache || options.allow_short || (asks && !history.skip())) {
        return AtOnce::kNone;
    }
    return AtOnce::kDirect;
}

std::unique_ptr<SmallCopy> Core::small_copy(const Memory& memory,
                                            const TransferOptions& options) const {
    const bool is_small = memory.data != nullptr && memory.bytes != 0 &&
                          memory.bytes <= std::min(SmallCopy::kBytes, options_.inline_bytes_max);
    return is_small && platform_.take_small_copy
               ? platform_.take_small_copy(memory, options.streams)
               : nullptr;
}

std::optional<std::uint64_t> Core::read_at_once(os::File& file, Memory into, std::uint64_t offset,
                                                const TransferOptions& options) {
    if (into.kind == MemoryKind::kDevice) {
        const auto copy = small_copy(into, options);
        const bool done = copy != nullptr &&
                          read_at_once(file, {copy->buffer(), into.bytes}, offset, options) &&
                          copy->copy_in(into);
        return done ? std::optional(into.bytes) : std::nullopt;
    }
    if (!is_plain(into, offset, options_.inline_bytes_max) || !is_plain(options) || options.sync ||
        file.info().access == Access::kWrite) {
        return std::nullopt;
    }
    const AtOnce way = way_at_once(file, into, offset, options);
    if (way == AtOnce::kNone) {
        return std::nullopt;
    }
    auto lent = lent_at_once(file, way != AtOnce::kDirect);
    if (!lent) {
        return std::nullopt;
    }
    Counters& counters = lent.channel().counters();
    const iovec piece{into.data, into.bytes};
    std::int64_t got = 0;
    std::uint64_t cached_bytes = 0;
    if (way == AtOnce::kCached) {
        const CachedRead read = read_cached(file, offset, {&piece, 1});
        got = read.result;
        cached_bytes = read.cached_bytes;
    } else if (way == AtOnce::kInMemory) {
        got = file.read_at(os::IoPath::kBuffered, offset, {&piece, 1});
    } else {
        const base::Nanos begin = platform_.clock->now();
        got = file.read_at(os::IoPath::kDirect, offset, {&piece, 1});
        counters.latency.add(platform_.clock->now() - begin);
    }
    if (moved(got) != into.bytes) {
        return std::nullopt;
    }
    if (way != AtOnce::kInMemory) {
        static_cast<void>(file.cache_history().in_sequence(offset, into.bytes));
    }
    counters.requests.add(1);
    counters.bytes_cached.add(cached_bytes);
    counters.bytes_read.add(into.bytes - cached_bytes);
    return into.bytes;
}

// Reads a file that was opened for it. Without streams the copy comes after the default stream;
// those of the caller have passed.
bool Core::read_small_of_device(Window& window) {
    Transfer& transfer = *window.transfer;
    if (transfer.op != Op::kRead || transfer.extents.count() != 1 || transfer.files.size() != 1 ||
        transfer.allow_short || transfer.depth_limit || transfer.files.front() == nullptr) {
        return false;
    }
    const auto& order = transfer.devices->order;
    const auto passed = order ? order->passed() : base::Result<bool>(true);
    if (!passed || !*passed) {
        return false;
    }
    const Extent extent = transfer.extents[0];
    TransferOptions options;
    options.cache = transfer.cache;
    if (!read_at_once(*transfer.files.front(), extent.memory, extent.offset, options)) {
        return false;
    }
    parts_are_through(window);
    return true;
}

std::optional<std::uint64_t> Core::write_at_once(os::File& file, Memory data, std::uint64_t offset,
                                                 const TransferOptions& options) {
    if (data.kind == MemoryKind::kDevice) {
        const auto copy = options.sync ? nullptr : small_copy(data, options);
        return copy != nullptr && copy->copy_out(data)
                   ? write_at_once(file, {copy->buffer(), data.bytes}, offset, options)
                   : std::nullopt;
    }
    const os::FileInfo& info = file.info();
    const bool by_cache = info.asks_cache && info.geometry.direct;
    if ((!by_cache && !info.in_memory) || info.append || info.access == Access::kRead ||
        options.sync || options.allow_short || options.cache != CachePolicy::kAuto ||
        options_.cache != CachePolicy::kAuto || options_.inline_bytes_max == 0 ||
        !is_plain(options) || !is_plain(data, offset, options_.domain.channel.block_bytes)) {
        return std::nullopt;
    }
    auto lent = lent_at_once(file, true);
    if (!lent) {
        return std::nullopt;
    }
    std::unique_lock<std::mutex> gate;
    if (by_cache) {
        gate = std::unique_lock(file.edge_gate());
    }
    const iovec piece{data.data, data.bytes};
    if (moved(file.write_at(os::IoPath::kBuffered, offset, {&piece, 1})) != data.bytes) {
        return std::nullopt;
    }
    Counters& counters = lent.channel().counters();
    counters.requests.add(1);
    counters.edge_requests.add(by_cache ? 1 : 0);
    counters.bytes_written.add(data.bytes);
    return data.bytes;
}

}  // namespace penstock::engine
