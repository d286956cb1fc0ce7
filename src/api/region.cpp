// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "base/raise.hpp"
#include "device/cuda/owned.hpp"
#include "memory/block.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock {

// The owner of anything, which a public header need not know.
template <typename Owner>
void Region::own(Owner owner) {
    owner_ = {new Owner(std::move(owner)), End{[](void* kept, bool leaves) {
                  auto* const its = static_cast<Owner*>(kept);
                  if (leaves) {
                      its->leave();
                  }
                  delete its;
              }}};
}

Region Region::host(std::uint64_t bytes, bool huge_pages, bool keep_on_fork) {
    memory::Block block = base::unwrap(memory::Block::make(
        bytes, {.huge_pages = huge_pages, .keep_on_fork = keep_on_fork, .reserve = false}));
    if (!huge_pages) {
        block.allow_huge_pages(false);  // no more memory than what is written to
    }
    Region made;
    made.data_ = block.data();
    made.bytes_ = bytes;
    made.own(std::move(block));
    return made;
}

Region Region::pinned(std::uint64_t bytes, std::int32_t device) {
    static_cast<void>(base::unwrap(device::gpu_context(device)));
    Region made;
    made.device_ = device;
    if (bytes != 0) {
        device::PinnedBlock block = base::unwrap(device::PinnedBlock::make(device, bytes));
        made.data_ = block.data();
        made.bytes_ = bytes;
        made.gpu_address_ = block.address();
        made.own(std::move(block));
    }
    return made;
}

Region Region::gpu(std::uint64_t bytes, std::int32_t device) {
    static_cast<void>(base::unwrap(device::gpu_context(device)));
    Region made;
    made.kind_ = MemoryKind::kDevice;
    made.device_ = device;
    if (bytes != 0) {
        device::DeviceMemory memory = base::unwrap(device::DeviceMemory::make(device, bytes));
        made.data_ = memory.data();
        made.bytes_ = bytes;
        made.gpu_address_ = memory.get();
        made.own(std::move(memory));
    }
    return made;
}

Memory Region::memory(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset > bytes_ || bytes > bytes_ - offset) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "region",
                                fmt::format("{} bytes at {} reach past the end of a region of {}",
                                            bytes, offset, bytes_)));
    }
    return {data_ + offset, bytes, kind_, kind_ == MemoryKind::kDevice ? device_ : 0};
}

void Region::drop(std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (device_ >= 0 || offset >= bytes_) {
        return;
    }
    const std::uint64_t first = base::align_up(offset, base::kPageBytes);
    const std::uint64_t last =
        base::align_down(offset + std::min(bytes, bytes_ - offset), base::kPageBytes);
    if (first < last) {
        static_cast<void>(::madvise(data_ + first, last - first, MADV_DONTNEED));
    }
}

}  // namespace penstock
