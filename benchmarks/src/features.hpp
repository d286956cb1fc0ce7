// SPDX-License-Identifier: Apache-2.0
// Jobs on tables of rows.
#pragma once

#include "common.hpp"
#include "engine/extents.hpp"
#include "features/files/opened_features.hpp"

#include <penstock/types.hpp>

#include <cstdint>
#include <span>

namespace penstock::benchmarks {

/// Rows that `--policy` reads over the batches of a sampled graph.
void trace(const Arguments& arguments, Figures& figures);
/// Rows that the window policy reads by FIFO's, of rows that are used equally, and by Zipf's law.
void control(const Arguments& arguments, Figures& figures);
/// Bytes a slot of the cache's tables: the most of all policies.
void metadata(const Arguments& arguments, Figures& figures);
/// A million rows of a table striped over four disks, by the least time that these need. Handicap
/// `wait_512`: 512 rows at a time.
void depth(const Arguments& arguments, Figures& figures);

/// A table without files: what a gather asks of it.
[[nodiscard]] features::OpenedFeatures striped_table(std::uint64_t parts, std::uint64_t rows,
                                                     std::uint64_t row_bytes);
/// The reads of a gather of these rows of it.
[[nodiscard]] engine::Extents extents_of_gather(const features::OpenedFeatures& opened,
                                                std::span<const std::uint64_t> ids,
                                                penstock::Memory out);

}  // namespace penstock::benchmarks
