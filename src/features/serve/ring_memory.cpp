// SPDX-License-Identifier: Apache-2.0
#include "features/serve/ring_memory.hpp"

#include "base/raise.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace penstock::features {

RingMemory::RingMemory(std::uint64_t bytes, std::int32_t gpu)
    : pool_(MemoryOptions{.kept_bytes_max = 0}), buffer_(pool_.take(bytes)) {
    std::memset(buffer_.data(), 0, bytes);
    if (::madvise(buffer_.data(), bytes, MADV_WIPEONFORK) != 0) {
        base::raise(base::system_error(errno, "madvise", "MADV_WIPEONFORK"));
    }
    if (gpu >= 0) {
        mapped_ = PinnedMemory(buffer_.bytes(), gpu, true);
    }
}

}  // namespace penstock::features
