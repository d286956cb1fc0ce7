// SPDX-License-Identifier: Apache-2.0
// The place in a slot of each tensor that is read, and in an image of the files of each that stays.
// Products of one row depend on addresses modulo 64, so a tensor has the address modulo 64 that it
// has in the model in memory: that of its place in the mapped file, or 0 where a loader moves it.
// Where its place in the file allows, it is at the same address modulo a page, so that the device
// writes it there directly.
#pragma once

#include <penstock/tensor_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::tier {

/// A cache line, and what torch gives its own tensors.
inline constexpr std::uint64_t kLineBytes = 64;

struct StoredTensor {
    std::vector<TensorStretch> stretches;
    std::uint64_t bytes = 0;
    std::uint64_t residue = 0;  ///< its address modulo kLineBytes in the model in memory

    [[nodiscard]] std::uint32_t file() const { return stretches.empty() ? 0 : stretches[0].file; }
    [[nodiscard]] std::uint64_t offset() const {
        return stretches.empty() ? 0 : stretches[0].offset;
    }
    /// Whether its first bytes are at the same address modulo a page as in their file.
    [[nodiscard]] bool keeps_place() const { return offset() % kLineBytes == residue; }
};

/// One stretch is mapped by a loader. Several are copied to memory of their own, and so is a tensor
/// whose place is no multiple of its element.
[[nodiscard]] StoredTensor stored_tensor(std::vector<TensorStretch> stretches, std::uint64_t bytes,
                                         std::uint64_t element_bytes);

/// The address of each of `chosen`, from the beginning of memory that is aligned to a page; at most
/// the sum of memory_of() long.
[[nodiscard]] std::vector<std::uint64_t> place_in_slot(std::span<const StoredTensor> tensors,
                                                       std::span<const std::size_t> chosen);

struct ImageLayout {
    std::vector<std::uint64_t> places;  ///< of each tensor, from the beginning of the image
    std::uint64_t bytes = 0;            ///< of the image, which is aligned to a page
};

/// Places like those in the files, so that what adjoins stays together. Tensors may share bytes of
/// a file (tied ones of a .pt). Each has memory of its own, for one may be given back while the
/// other stays.
[[nodiscard]] ImageLayout lay_out_image(std::span<const StoredTensor> tensors,
                                        std::span<const std::uint64_t> file_bytes);

/// Places that are as far into their pages as in the files, where that keeps the residue. No two
/// tensors have a page in common, so that pages can be pinned for each alone.
[[nodiscard]] ImageLayout lay_out_apart(std::span<const StoredTensor> tensors);

}  // namespace penstock::tier
