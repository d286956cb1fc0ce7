// SPDX-License-Identifier: Apache-2.0
// Experts of layers: where their bytes are in the files, and in a slot that has room for any.
#pragma once

#include "tier/slot_layout.hpp"

#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::weights {

struct StoredExpert {
    std::vector<tier::StoredTensor> parts;
    std::vector<std::uint64_t> places;  ///< of each part, from the beginning of a slot
};

struct ExpertLayout {
    std::vector<std::vector<StoredExpert>> layers;
    std::uint64_t slot_bytes = 0;  ///< whole pages, or blocks of a GPU
    std::size_t experts = 0;       ///< of all layers

    [[nodiscard]] std::uint64_t least_bytes() const {
        return std::min<std::uint64_t>(experts, 2) * slot_bytes;
    }
    [[nodiscard]] const StoredExpert& of(std::size_t layer, std::size_t number) const {
        return layers[layer][number];
    }
};

/// Throws Error: kInvalidArgument for a tensor that the table does not have, or a part beyond its
/// end; kUnsupported for strides.
[[nodiscard]] ExpertLayout lay_out_experts(const TensorTable& table,
                                           std::span<const ExpertLayer> layers,
                                           std::optional<std::int32_t> gpu);

}  // namespace penstock::weights
