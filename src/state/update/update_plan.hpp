// SPDX-License-Identifier: Apache-2.0
// What an update changes in each file: the bytes of its tensors, and the places of the checksums
// that cover them. All that is refused is refused here, by name, before a byte is written.
#pragma once

#include "format/value.hpp"
#include "state/tensor_reader.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/error.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::state {

/// A name that the file does not have.
struct UnknownTensor : Error {
    using Error::Error;
};

struct PlannedTensor {
    const StateTensor* given = nullptr;
    std::uint64_t offset = 0;  ///< of its bytes in the file, all of a storage in a .pt
    std::uint64_t bytes = 0;
    /// The tensor of the reader, if its elements lie in another order there (it was saved
    /// transposed).
    const format::TensorValue* strided = nullptr;
    std::vector<std::uint64_t> crc_places = {};  ///< of the CRC-32 of its bytes
    /// The place of the digits of its checksums, one of each `piece_bytes`; 0: it has none.
    std::uint64_t digits_at = 0;
    std::uint64_t piece_bytes = 0;
};

struct PlannedFile {
    std::uint32_t number = 0;            ///< in the reader
    std::vector<PlannedTensor> tensors;  ///< in the order of the file
    std::uint64_t head_end = 0;          ///< where its first tensor begins
    std::uint64_t tail_begin = 0;        ///< and its last one ends
    /// Offset and bytes of the tensors that do not change.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> others;
};

/// The files that have one of the tensors. The plan points into `reader` and `tensors`. Throws
/// Error.
[[nodiscard]] std::vector<PlannedFile> plan_update(Engine& engine, const TensorReader& reader,
                                                   const std::string& path,
                                                   std::span<const StateTensor> tensors);

}  // namespace penstock::state
