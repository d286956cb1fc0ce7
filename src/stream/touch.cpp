// SPDX-License-Identifier: Apache-2.0
#include "stream/touch.hpp"

#include "base/align.hpp"

#include <sys/mman.h>

#include <algorithm>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; an older kernel refuses
#endif

namespace penstock::stream {

void Touch::add(const std::byte* data, std::uint64_t bytes) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t begin = base::align_down(address, base::kPageBytes);
    const std::uintptr_t end = base::align_up(address + bytes, base::kPageBytes);
    if (begin < begin_ || begin > end_) {
        flush();
        begin_ = begin;
    }
    end_ = std::max(end_, end);
}

void Touch::flush() noexcept {
    if (begin_ < end_) {
        static_cast<void>(
            ::madvise(reinterpret_cast<void*>(begin_), end_ - begin_, MADV_POPULATE_WRITE));
    }
    begin_ = end_ = 0;
}

}  // namespace penstock::stream
