// SPDX-License-Identifier: Apache-2.0
// From numbers of rows to the reads of them: checks of what a caller gave, and the transfer.
#pragma once

#include "features/files/opened_features.hpp"

#include <penstock/engine.hpp>
#include <penstock/features.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::features {

/// Throws kInvalidArgument: a table that is not there, a row that is not there (named with its
/// place in `ids`), or memory of another size; memory of a GPU that is not what it claims to be.
void check_request(const OpenedFeatures& opened, const FeatureRequest& request);
/// Throws kInvalidArgument for a stream where no memory is of a GPU, or of several.
void check_stream(const OpenedFeatures& opened, std::span<const FeatureRequest> requests,
                  const std::optional<StreamHandle>& stream);
/// Names a call and its numbers of rows, in messages.
struct RowsAsked {
    const char* operation = "gather";
    const char* argument = "ids";
};

/// The first two of what check_request() throws.
void check_ids(const OpenedFeatures& opened, std::uint32_t table,
               std::span<const std::uint64_t> ids, const RowsAsked& asked = {});

/// Rows that are to be read: ids[i] to memory + destinations[i] * row_bytes.
struct WantedRows {
    std::uint32_t table = 0;
    std::span<const std::uint64_t> ids;
    std::span<const std::uint64_t> destinations = {};  ///< empty: i
    Memory out;
};

/// The reads of rows, with what the call that submits them looks at.
struct RowReads {
    TransferRequest request;
    std::vector<std::uint64_t> ids;  ///< in their parts
    std::vector<std::uint32_t> parts_of;
};

/// One transfer for all of them. The result is not to be moved before it is submitted.
void make_reads(const OpenedFeatures& opened, std::span<const WantedRows> wanted, RowReads& reads);

}  // namespace penstock::features
