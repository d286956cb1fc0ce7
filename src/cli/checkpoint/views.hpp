// SPDX-License-Identifier: Apache-2.0
// The tensors of a source as its state has them: what is stored once may have several names, and
// what is stored as the bytes of a storage has a type and a shape.
#pragma once

#include "cli/checkpoint/source.hpp"
#include "state/structure.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

struct ViewRow {
    SourceTensor tensor;                 ///< bytes: of its elements; offset: of the first of them
    std::string stored_as;               ///< the name in the source
    std::string shared_with;             ///< the first row of the same memory, or empty
    std::vector<std::uint64_t> strides;  ///< elements; empty: row-major
    std::size_t index = 0;               ///< of what is stored, in the source
    std::optional<format::TensorValue> view = {};  ///< of that; nothing: it is the row itself
};

/// Nothing where there is no structure around the tensors, or one that Penstock did not write.
[[nodiscard]] std::optional<state::Skeleton> skeleton_of(const CheckpointSource& source);

/// By their places in the state, in its order; then what no place of it leads to, as it is stored.
[[nodiscard]] std::vector<ViewRow> rows_of(const CheckpointSource& source,
                                           const std::optional<state::Skeleton>& skeleton);

}  // namespace penstock::cli
