// SPDX-License-Identifier: Apache-2.0
// A transfer of what is in the page cache, copied by the thread that waits for it: up to some MiB
// that takes less time than to hand them to the copy threads and to be woken (0.1 ms).
#include "engine/caller/ways.hpp"
#include "engine/core.hpp"
#include "engine/page_cache/cache_lookup.hpp"
#include "engine/page_cache/cached_read.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>

namespace penstock::engine {

namespace {

// Extents of one file that are listed one after the other.
struct FileExtents {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;  ///< in the list
    std::uint64_t end = 0;
    std::uint64_t bytes = 0;
    std::uint64_t low = UINT64_MAX;  ///< in the file
    std::uint64_t high = 0;
};

// Goes on to the extents after those of `list`; false at the end.
bool take_next(const Extents& extents, FileExtents& list) {
    const std::uint64_t begin = list.end;
    if (begin == extents.count()) {
        return false;
    }
    list = {.file = extents[begin].file, .begin = begin, .end = begin};
    for (; list.end < extents.count(); ++list.end) {
        const Extent extent = extents[list.end];
        if (extent.file != list.file) {
            break;
        }
        list.bytes += extent.memory.bytes;
        list.low = std::min(list.low, extent.offset);
        list.high = std::max(list.high, extent.offset + extent.memory.bytes);
    }
    return true;
}

bool can_be_asked(const std::shared_ptr<os::File>& file) {
    return file != nullptr && (file->info().in_memory ||
                               (file->info().asks_cache && !file->cache_history().refused()));
}

// Asks for extents together, unless they lie far apart.
bool is_cached(os::File& file, const FileExtents& list, Counters& counters) {
    if (file.info().in_memory || file.cache_history().warm() || list.bytes == 0) {
        return true;
    }
    const std::uint64_t span = list.high - list.low;
    if (span > CacheLookup::kWindowBytes || span / 4 > list.bytes) {
        return false;
    }
    return CacheLookup(counters, true).all_cached(file, list.low, span);
}

}  // namespace

// A read of what is in the page cache: of files whose last reads were there, or that the kernel
// says so of. The caller copies that sooner than others can be asked to; they do all of it where
// some is not there.
bool Core::copy_cached(Window& window) {
    Transfer& transfer = *window.transfer;
    const Extents& extents = transfer.extents;
    if (transfer.files.empty() || !ways::is_copied(transfer.total_bytes, extents.count())) {
        return false;
    }
    const bool all_warm = std::all_of(transfer.files.begin(), transfer.files.end(), is_warm);
    if (!all_warm && (transfer.total_bytes <= options_.inline_bytes_max ||
                      !std::all_of(transfer.files.begin(), transfer.files.end(), can_be_asked))) {
        return false;
    }
    const auto domain = domain_of(*transfer.files.front());
    auto lent = domain ? (*domain)->lend_at_once(true) : Domain::LentChannel();
    if (!lent) {
        return false;
    }
    Counters& counters = lent.channel().counters();
    for (FileExtents list; !all_warm && take_next(extents, list);) {
        if (!is_cached(*transfer.files[list.file], list, counters)) {
            return false;
        }
    }
    std::uint64_t requests = 0;
    std::uint64_t in_memory_bytes = 0;
    for (FileExtents list; take_next(extents, list); ++requests) {
        os::File& file = *transfer.files[list.file];
        if (!read_where_cached(file, extents, list.begin, list.end)) {
            file.cache_history().missed();
            transfer.has_missed = true;
            return false;
        }
        in_memory_bytes += file.info().in_memory ? list.bytes : 0;
    }
    counters.requests.add(requests);
    counters.bytes_read.add(in_memory_bytes);
    counters.bytes_cached.add(transfer.total_bytes - in_memory_bytes);
    lent.give_back();
    parts_are_through(window);
    return true;
}

}  // namespace penstock::engine
