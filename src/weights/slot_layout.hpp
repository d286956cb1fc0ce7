// SPDX-License-Identifier: Apache-2.0
// The place in a slot of each tensor that is read: at the same address modulo a page as in its
// file, so that the device writes it there directly, and products of one row (which depend on
// addresses) give the bits that they give for the mapped file.
#pragma once

#include <penstock/tensor_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::weights {

struct StoredTensor {
    std::vector<TensorStretch> stretches;
    std::uint64_t bytes = 0;
    std::uint64_t element_bytes = 1;

    /// Whether its place in the file is a multiple of its element. Else it is moved.
    [[nodiscard]] bool is_aligned() const {
        return stretches.empty() || stretches[0].offset % element_bytes == 0;
    }
};

/// The address of each of `chosen`, from the beginning of memory that is aligned to a page; at most
/// the sum of memory_of() long.
[[nodiscard]] std::vector<std::uint64_t> place_in_slot(std::span<const StoredTensor> tensors,
                                                       std::span<const std::size_t> chosen);

}  // namespace penstock::weights
