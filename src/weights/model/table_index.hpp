// SPDX-License-Identifier: Apache-2.0
// The tensors of a table by name.
#pragma once

#include "tier/slot_layout.hpp"

#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::weights {

class TableIndex {
public:
    /// Refers to the table.
    explicit TableIndex(const TensorTable& table);

    [[nodiscard]] bool has(std::string_view name) const { return entries_.contains(name); }
    void add(const TensorEntry& entry) { entries_.emplace(entry.name, &entry); }
    /// Throws Error: kInvalidArgument for a name that the table does not have, kUnsupported for a
    /// tensor with strides. `user`: "unit 'layers.0'", which needs it.
    [[nodiscard]] const TensorEntry& at(std::string_view user, const std::string& name) const;
    /// The tensor that a part is of. Throws kInvalidArgument for a part beyond its end, too.
    [[nodiscard]] const TensorEntry& at(std::string_view user, const TensorPart& part) const;

private:
    const TensorTable& table_;
    std::unordered_map<std::string_view, const TensorEntry*> entries_;
};

[[nodiscard]] tier::StoredTensor stored_tensor(const TensorEntry& entry);

/// The stretches of `bytes` bytes from `offset` on, which the caller knows to be there.
[[nodiscard]] std::vector<TensorStretch> part_of(std::span<const TensorStretch> stretches,
                                                 std::uint64_t offset, std::uint64_t bytes);

}  // namespace penstock::weights
