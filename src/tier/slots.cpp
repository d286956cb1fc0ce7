// SPDX-License-Identifier: Apache-2.0
#include "tier/slots.hpp"

#include "base/assert.hpp"

namespace penstock::tier {

Slots::Slots(std::size_t most, std::uint64_t slot_bytes, std::optional<std::int32_t> gpu)
    : slot_bytes_(slot_bytes), gpu_(gpu), most_(most) {
    if (!gpu) {
        host_ = std::make_shared<Region>(Region::host(most * slot_bytes, true));
    }
}

void Slots::resize(std::size_t slots) {
    PENSTOCK_ASSERT(slots <= most_);
    if (!gpu_) {
        if (slots < size_) {
            host_->drop(slots * slot_bytes_, (size_ - slots) * slot_bytes_);
        }
        size_ = slots;
        return;
    }
    const std::size_t before = regions_.size();
    try {
        regions_.reserve(slots);
        while (regions_.size() < slots) {
            regions_.push_back(std::make_shared<Region>(Region::gpu(slot_bytes_, *gpu_)));
        }
    } catch (...) {
        regions_.resize(before);
        throw;
    }
    regions_.resize(slots);
    size_ = slots;
}

Memory Slots::memory(std::size_t slot, std::uint64_t offset, std::uint64_t bytes) const {
    PENSTOCK_ASSERT(slot < size_ && offset + bytes <= slot_bytes_);
    return gpu_ ? regions_[slot]->memory(offset, bytes)
                : host_->memory(slot * slot_bytes_ + offset, bytes);
}

std::shared_ptr<void> Slots::owner(std::size_t slot) const {
    PENSTOCK_ASSERT(slot < size_);
    return gpu_ ? regions_[slot] : host_;
}

}  // namespace penstock::tier
