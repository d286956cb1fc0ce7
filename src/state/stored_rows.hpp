// SPDX-License-Identifier: Apache-2.0
// The tensors of a source as in its state: a stored tensor may have several names, and one stored
// as the bytes of a storage has a type and a shape.
#pragma once

#include "state/source.hpp"
#include "state/structure/structure.hpp"

#include <penstock/memory.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::state {

struct StoredRow {
    TensorEntry tensor;                            ///< as the state has it
    std::string stored_as;                         ///< the name in the source
    std::string shared_with;                       ///< the first row of the same memory, or empty
    std::size_t index = 0;                         ///< of the stored tensor, in the source
    std::optional<format::TensorValue> view = {};  ///< of that; nothing: it is the row itself
};

/// Nothing if there is no structure around the tensors, or one that Penstock did not write.
[[nodiscard]] std::optional<Skeleton> skeleton_of(const Source& source);

/// The tensors by their places in the state, in its order; then the unreferenced ones, as stored.
[[nodiscard]] std::vector<StoredRow> rows_of(const Source& source,
                                             const std::optional<Skeleton>& skeleton);

/// For a row with a `view`. Throws Error: kUnsupported where read_view() cannot have it.
void check_view(const Source& source, const StoredRow& row);

/// Reads the tensor of a row with a `view`, row-major, by way of memory of the pool for the stored
/// one. `into` has its bytes.
void read_view(Source& source, const StoredRow& row, std::span<std::byte> into, MemoryPool& pool,
               const stream::ReadFileOptions& options, const Progress& progress);

}  // namespace penstock::state
