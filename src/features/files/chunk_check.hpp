// SPDX-License-Identifier: Apache-2.0
// Compares the rows of a feature file with their checksums, one a chunk of a table's bytes in a
// part.
#pragma once

#include "features/files/opened_features.hpp"

#include <penstock/features.hpp>
#include <penstock/types.hpp>

#include <functional>

namespace penstock::features {

/// A chunk that does not match its checksum (`unread` is nullptr), or that could not be read.
using ChunkProblem = std::function<void(const FeatureProblem& problem, const Error* unread)>;

/// Reads all rows from the device, in the order of the tables and files, and reports each problem.
/// Throws Error: kUnsupported for a `.npy`, kDamaged if the checksums themselves are damaged,
/// kCancelled by `progress`, errors that say nothing of the file, and what `report` throws. Blocks.
void check_chunks(const OpenedFeatures& opened, const ChunkProblem& report,
                  const Progress& progress);

/// The same; throws the first problem, with its table, file and row.
void require_sound_chunks(const OpenedFeatures& opened, const Progress& progress);

}  // namespace penstock::features
