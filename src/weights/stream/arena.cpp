// SPDX-License-Identifier: Apache-2.0
#include "weights/stream/arena.hpp"

#include "base/align.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace penstock::weights {

Arena::Arena(std::uint64_t bytes, Pages pages) : bytes_(bytes) {
    void* const mapped = ::mmap(nullptr, std::max(bytes, base::kPageBytes), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        base::Error error = base::error(
            ErrorCode::kOutOfMemory, "stream",
            fmt::format("{} of addresses for weights could not be had: {}; raise `ulimit -v`, or "
                        "set vm.overcommit_memory to 0 or 1",
                        base::format_bytes(bytes), std::generic_category().message(errno)));
        error.system_errno = errno;
        base::raise(error);
    }
    data_ = static_cast<std::byte*>(mapped);
    // Advice: where it is refused, pages are what the system gives.
    static_cast<void>(::madvise(mapped, std::max(bytes, base::kPageBytes),
                                pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
}

Arena::~Arena() {
    ::munmap(data_, std::max(bytes_, base::kPageBytes));
}

void Arena::drop(std::uint64_t begin, std::uint64_t bytes) noexcept {
    const std::uint64_t first = base::align_up(begin, base::kPageBytes);
    const std::uint64_t last = base::align_down(begin + bytes, base::kPageBytes);
    if (first < last) {
        static_cast<void>(::madvise(data_ + first, last - first, MADV_DONTNEED));
    }
}

}  // namespace penstock::weights
