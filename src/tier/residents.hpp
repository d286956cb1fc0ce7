// SPDX-License-Identifier: Apache-2.0
// Memory for tensors that stay between passes. Each is kept and dropped alone.
//
//     host     an image of the files: a tensor's address there is its offset, so it is congruent to
//              it, and what adjoins stays together. Pages are taken as they are written. A tensor
//              that is dropped gives back its whole pages; those at its ends may be its neighbours'
//     pinned   pages of the host that no other tensor has a part of, pinned for GPUs
//     GPU      an allocation each
#pragma once

#include "tier/slot_layout.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock::tier {

/// Not thread-safe.
class Residents {
public:
    /// Each throws Error: kOutOfMemory for addresses that the system refuses. `file_bytes`: of the
    /// files of the tensors.
    [[nodiscard]] static Residents on_host(std::span<const StoredTensor> tensors,
                                           std::span<const std::uint64_t> file_bytes);
    [[nodiscard]] static Residents pinned(std::span<const StoredTensor> tensors, std::int32_t gpu);
    [[nodiscard]] static Residents on_gpu(std::span<const StoredTensor> tensors, std::int32_t gpu);

    [[nodiscard]] bool keeps(std::size_t tensor) const { return kept_[tensor]; }
    /// Memory for a tensor that is not kept. Throws Error: kOutOfMemory where a GPU has no room, or
    /// memory cannot be pinned.
    void keep(std::size_t tensor);
    /// Gives its memory back. No transfer and no copy may use it.
    void drop(std::size_t tensor) noexcept;
    /// The memory of a tensor that is kept.
    [[nodiscard]] Memory of(std::size_t tensor) const;
    /// Keeps the addresses valid.
    [[nodiscard]] std::shared_ptr<void> owner(std::size_t tensor) const;

private:
    Residents(std::span<const StoredTensor> tensors, ImageLayout layout,
              std::optional<std::int32_t> gpu);

    [[nodiscard]] bool is_on_gpu() const { return image_ == nullptr; }

    std::vector<std::uint64_t> bytes_;
    std::vector<std::uint64_t> places_;
    std::vector<bool> kept_;
    std::optional<std::int32_t> gpu_;
    std::shared_ptr<Region> image_;                 // of the host; none on a GPU
    std::vector<PinnedMemory> pinned_;              // of each tensor, where they are pinned
    std::vector<std::shared_ptr<Region>> regions_;  // of each tensor, on a GPU
};

}  // namespace penstock::tier
