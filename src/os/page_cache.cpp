// SPDX-License-Identifier: Apache-2.0
#include "os/page_cache.hpp"

#include "os/file.hpp"
#include "os/machine/limits.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace penstock::os {

namespace {

constexpr long kCachestatCall = 451;  // the headers of Debian 12 lack it

std::string why_refused(int error) {
    switch (error) {
        case ENOSYS:
            return fmt::format("Linux {} has no cachestat(2), which came with 6.5",
                               kernel_release());
        case EPERM:
            return "cachestat(2) tells of a file only those who own it or may write it";
        case EOPNOTSUPP:
            return "cachestat(2) says nothing of this file system";
        default:
            return fmt::format("cachestat(2) is refused: {}",
                               std::generic_category().message(error));
    }
}

std::string use_by_auto(const File& file) {
    const FileInfo& info = file.info();
    if (info.in_memory) {
        return "read from there: " + info.file_system + " has no device below it";
    }
    if (!info.geometry.direct) {
        return "all goes through it: " + info.geometry.reason;
    }
    if (!info.asks_cache) {
        return info.is_block_device
                   ? "passed by: a block device is not asked for its pages"
                   : "passed by: " + info.file_system +
                         " is not asked, for others than this kernel may keep its pages; with "
                         "cache='cached' reads go through it";
    }
    CachedPages pages;
    const int error = file.cached_pages(0, 1, pages);
    return error == 0 ? "what is in it is read from there, the rest directly; cachestat(2) tells"
                      : "what is in it is read from there, the rest directly; single bytes are "
                        "tried to find out (RWF_NOWAIT), for " +
                            why_refused(error);
}

}  // namespace

int cachestat(int fd, std::uint64_t offset, std::uint64_t bytes, CachedPages& found) {
    struct {
        std::uint64_t offset;
        std::uint64_t bytes;
    } range{offset, bytes};
    struct {
        std::uint64_t cached;
        std::uint64_t dirty;
        std::uint64_t writeback;
        std::uint64_t evicted;
        std::uint64_t recently_evicted;
    } answer{};
    if (::syscall(kCachestatCall, fd, &range, &answer, 0U) != 0) {
        return errno;
    }
    found = {answer.cached, answer.dirty + answer.writeback};
    return 0;
}

std::string cachestat_refusal() {
    CachedPages pages;
    const int error = cachestat(-1, 0, 1, pages);
    return error == EBADF ? "" : why_refused(error);
}

std::string page_cache_use(const File& file) {
    const FileInfo& info = file.info();
    if (info.access == Access::kWrite) {
        return info.asks_cache ? "short writes go through it" : "the file is not read";
    }
    switch (info.cache) {
        case CachePolicy::kAuto:
            return use_by_auto(file);
        case CachePolicy::kCached:
            return "all goes through it, as asked for";
        default:
            return info.geometry.direct ? "passed by, as asked for"
                                        : "all goes through it: " + info.geometry.reason;
    }
}

}  // namespace penstock::os
