// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "base/raise.hpp"
#include "device/launch.hpp"
#include "memory/block.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock {

namespace {

struct Pinned {
    memory::Block block;
    device::PinnedRange range;  // ends before the memory does
};

}  // namespace

Region Region::host(std::uint64_t bytes, bool huge_pages, bool keep_on_fork) {
    auto block = std::make_shared<memory::Block>(base::unwrap(memory::Block::make(
        bytes, {.huge_pages = huge_pages, .keep_on_fork = keep_on_fork, .reserve = false})));
    if (!huge_pages) {
        block->allow_huge_pages(false);  // no more memory than what is written to
    }
    Region made;
    made.data_ = block->data();
    made.bytes_ = bytes;
    made.owner_ = std::move(block);
    return made;
}

Region Region::pinned(std::uint64_t bytes, std::int32_t device) {
    auto owner = std::make_shared<Pinned>();
    Region made;
    made.device_ = device;
    if (bytes != 0) {
        // A child of a fork has not got it: it would share pages that a device reads.
        owner->block = base::unwrap(memory::Block::make(bytes, {.keep_on_fork = false}));
        owner->range =
            base::unwrap(device::PinnedRange::make(device, owner->block.data(), bytes));
        made.data_ = owner->block.data();
        made.bytes_ = bytes;
        made.gpu_address_ = owner->range.address();
    }
    made.owner_ = std::move(owner);
    return made;
}

Region Region::gpu(std::uint64_t bytes, std::int32_t device) {
    Region made;
    made.kind_ = MemoryKind::kDevice;
    made.device_ = device;
    if (bytes != 0) {
        auto block = std::make_shared<device::DeviceBlock>(
            base::unwrap(device::DeviceBlock::make(device, bytes)));
        made.data_ = block->memory().data;
        made.bytes_ = bytes;
        made.gpu_address_ = block->address();
        made.owner_ = std::move(block);
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
