// SPDX-License-Identifier: Apache-2.0
#include "tier/residents.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"

#include <utility>

namespace penstock::tier {

namespace {

// The whole pages that a range touches.
std::span<std::byte> pages_of(const Region& image, std::uint64_t begin, std::uint64_t bytes) {
    const std::uint64_t first = base::align_down(begin, base::kPageBytes);
    const std::uint64_t last = base::align_up(begin + bytes, base::kPageBytes);
    return {image.data() + first, last - first};
}

}  // namespace

Residents::Residents(std::span<const StoredTensor> tensors, ImageLayout layout,
                     std::optional<std::int32_t> gpu)
    : places_(std::move(layout.places)), kept_(tensors.size(), false), gpu_(gpu) {
    for (const StoredTensor& tensor : tensors) {
        bytes_.push_back(tensor.bytes);
    }
}

Residents Residents::on_host(std::span<const StoredTensor> tensors,
                             std::span<const std::uint64_t> file_bytes) {
    ImageLayout image = lay_out_image(tensors, file_bytes);
    const std::uint64_t bytes = image.bytes;
    Residents out(tensors, std::move(image), std::nullopt);
    out.image_ = std::make_shared<Region>(Region::host(bytes));
    return out;
}

// A child of a fork has not got what is pinned: it would share pages that a GPU reads.
Residents Residents::pinned(std::span<const StoredTensor> tensors, std::int32_t gpu) {
    ImageLayout layout = lay_out_apart(tensors);
    const std::uint64_t bytes = layout.bytes;
    Residents out(tensors, std::move(layout), gpu);
    out.image_ = std::make_shared<Region>(Region::host(bytes, false, false));
    out.pinned_.resize(tensors.size());
    return out;
}

Residents Residents::on_gpu(std::span<const StoredTensor> tensors, std::int32_t gpu) {
    Residents out(tensors, lay_out_apart(tensors), gpu);
    out.regions_.resize(tensors.size());
    return out;
}

void Residents::keep(std::size_t tensor) {
    PENSTOCK_ASSERT(!kept_[tensor]);
    const std::uint64_t bytes = bytes_[tensor];
    if (bytes != 0 && is_on_gpu()) {
        const std::uint64_t residue = places_[tensor] % kLineBytes;
        regions_[tensor] = std::make_shared<Region>(Region::gpu(residue + bytes, *gpu_));
    } else if (bytes != 0 && !pinned_.empty()) {
        // Nobody else pins these pages: what is registered there was left behind.
        pinned_[tensor] = PinnedMemory(pages_of(*image_, places_[tensor], bytes), *gpu_, true);
    }
    kept_[tensor] = true;
}

void Residents::drop(std::size_t tensor) noexcept {
    PENSTOCK_ASSERT(kept_[tensor]);
    kept_[tensor] = false;
    if (is_on_gpu()) {
        regions_[tensor] = nullptr;
        return;
    }
    if (pinned_.empty()) {
        image_->drop(places_[tensor], bytes_[tensor]);
        return;
    }
    pinned_[tensor] = {};
    const std::span<std::byte> pages = pages_of(*image_, places_[tensor], bytes_[tensor]);
    image_->drop(static_cast<std::uint64_t>(pages.data() - image_->data()), pages.size());
}

Memory Residents::of(std::size_t tensor) const {
    PENSTOCK_ASSERT(kept_[tensor]);
    const std::uint64_t bytes = bytes_[tensor];
    if (!is_on_gpu()) {
        return image_->memory(places_[tensor], bytes);
    }
    if (bytes == 0) {
        return {nullptr, 0, MemoryKind::kDevice, *gpu_};
    }
    return regions_[tensor]->memory(places_[tensor] % kLineBytes, bytes);
}

std::shared_ptr<void> Residents::owner(std::size_t tensor) const {
    return is_on_gpu() ? std::shared_ptr<void>(regions_[tensor]) : image_;
}

}  // namespace penstock::tier
