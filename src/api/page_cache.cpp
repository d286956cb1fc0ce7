// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "base/raise.hpp"
#include "os/local_file.hpp"

#include <penstock/memory.hpp>

#include <fcntl.h>

#include <algorithm>
#include <memory>

namespace penstock {

namespace {

// One call reads at most what the device's read-ahead allows (128 KiB where nobody set it), and
// says nothing of the rest.
constexpr std::uint64_t kStepBytes = 128 * base::kKiB;

struct Range {
    std::shared_ptr<os::File> file;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    void advise(std::uint64_t offset, std::uint64_t bytes, int advice) const {
        const int refused =
            ::posix_fadvise(file->descriptor(os::IoPath::kBuffered), static_cast<off_t>(offset),
                            static_cast<off_t>(bytes), advice);
        if (refused != 0) {
            base::raise(base::system_error(refused, "advise", file->info().path, offset));
        }
    }
};

Range open_range(const std::string& path, std::uint64_t offset,
                 std::optional<std::uint64_t> bytes) {
    Range range;
    range.file = base::unwrap(os::open_local_file(path, {.cache = CachePolicy::kCached}));
    const std::uint64_t size = base::unwrap(range.file->size());
    range.begin = std::min(offset, size);
    range.end = range.begin + std::min(bytes.value_or(size), size - range.begin);
    return range;
}

}  // namespace

void prefetch(const std::string& path, std::uint64_t offset, std::optional<std::uint64_t> bytes) {
    const Range range = open_range(path, offset, bytes);
    for (std::uint64_t at = range.begin; at < range.end; at += kStepBytes) {
        range.advise(at, std::min(kStepBytes, range.end - at), POSIX_FADV_WILLNEED);
    }
}

void evict(const std::string& path, std::uint64_t offset, std::optional<std::uint64_t> bytes) {
    const Range range = open_range(path, offset, bytes);
    if (range.begin < range.end) {
        base::unwrap(range.file->sync_data());
        range.advise(range.begin, range.end - range.begin, POSIX_FADV_DONTNEED);
    }
}

}  // namespace penstock
