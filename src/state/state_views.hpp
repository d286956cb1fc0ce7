// SPDX-License-Identifier: Apache-2.0
// The tensors of a state by their places in it, whatever memory they share and however their
// elements lie; and a contiguous copy of one.
#pragma once

#include "format/value.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

struct StateView {
    std::string name;  ///< its keys joined by dots, as inspect() prints them; empty for the root
    std::uint32_t tensor = 0;  ///< its number in the tree
};

/// A key of a dict in a name, as Python's str() prints it.
[[nodiscard]] std::string key_text(const format::Value& key);

/// The tensors in dicts, lists and tuples, in the order of the state. One in two places has two
/// names.
[[nodiscard]] std::vector<StateView> views_of(const format::ValueTree& tree);

/// Bytes of its elements, each counted once per place in the shape. The tensor fits().
[[nodiscard]] std::uint64_t view_bytes(const format::TensorValue& tensor);

/// Whether its elements are contiguous in memory as in safetensors (row-major), and neither
/// conjugated nor negated.
[[nodiscard]] bool is_plain(const format::TensorValue& tensor);

/// Empty, or why gather() cannot make a tensor of safetensors of it in no more than the
/// `storage_bytes` of its memory.
[[nodiscard]] std::string why_not_gathered(const format::TensorValue& tensor,
                                           std::uint64_t storage_bytes);

/// Copies its elements, row-major, into view_bytes(). Requires an empty why_not_gathered().
void gather(const format::TensorValue& tensor, std::span<const std::byte> storage,
            std::span<std::byte> into);

/// Copies elements, row-major, to their places in a storage: the reverse of gather().
void scatter(const format::TensorValue& tensor, std::span<const std::byte> from,
             std::span<std::byte> storage);

}  // namespace penstock::state
