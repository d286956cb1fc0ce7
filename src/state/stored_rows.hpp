// SPDX-License-Identifier: Apache-2.0
// The tensors of a source as its state has them: what is stored once may have several names, and
// what is stored as the bytes of a storage has a type and a shape.
#pragma once

#include "state/source.hpp"
#include "state/structure.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::state {

struct StoredRow {
    TensorEntry tensor;                            ///< as the state has it
    std::string stored_as;                         ///< the name in the source
    std::string shared_with;                       ///< the first row of the same memory, or empty
    std::size_t index = 0;                         ///< of what is stored, in the source
    std::optional<format::TensorValue> view = {};  ///< of that; nothing: it is the row itself
};

/// Nothing where there is no structure around the tensors, or one that Penstock did not write.
[[nodiscard]] std::optional<Skeleton> skeleton_of(const Source& source);

/// By their places in the state, in its order; then what no place of it leads to, as it is stored.
[[nodiscard]] std::vector<StoredRow> rows_of(const Source& source,
                                             const std::optional<Skeleton>& skeleton);

}  // namespace penstock::state
