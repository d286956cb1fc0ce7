// SPDX-License-Identifier: Apache-2.0
// The tensors of a state by their places in it, whatever they share and however their elements
// stand; and one of them put in a row.
#pragma once

#include "format/value.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

struct StateView {
    std::string name;  ///< its keys joined by dots, as inspect() has them; the root itself has none
    std::uint32_t tensor = 0;  ///< its number in the tree
};

/// Those in dicts, lists and tuples, in the order of the state. One that stands in two places has
/// two names.
[[nodiscard]] std::vector<StateView> views_of(const format::ValueTree& tree);

/// Bytes of its elements, each counted once for each place in the shape. The tensor fits().
[[nodiscard]] std::uint64_t view_bytes(const format::TensorValue& tensor);

/// Whether its elements follow one another in memory as safetensors has them (row-major), as they
/// are (neither conjugated nor negated).
[[nodiscard]] bool is_plain(const format::TensorValue& tensor);

/// Empty, or why gather() cannot make a tensor of safetensors of it in no more than the
/// `storage_bytes` that are behind it.
[[nodiscard]] std::string why_not_gathered(const format::TensorValue& tensor,
                                           std::uint64_t storage_bytes);

/// Its elements row-major into view_bytes(). why_not_gathered() has nothing against it.
void gather(const format::TensorValue& tensor, std::span<const std::byte> storage,
            std::span<std::byte> into);

}  // namespace penstock::state
