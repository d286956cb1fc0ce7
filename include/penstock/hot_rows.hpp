// SPDX-License-Identifier: Apache-2.0
// Which rows are used most, before or without a run: what to have in memory from the beginning.
//
//     const auto heat = penstock::expected_visits(graph, {10, 5, 5}, {.batch = 1024});
//     const auto hot = penstock::hottest_rows(heat, 100'000);
#pragma once

#include <penstock/error.hpp>
#include <penstock/graph.hpp>
#include <penstock/row_simulation.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// Returns for each node how many edges begin at it. A neighbourhood samples a node by its edges,
/// so this is a measure of how often it is used. Reads all edges. Throws kInvalidArgument for an
/// edge of a node that is not there. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> out_degrees(const Graph& graph);

struct ExpectedVisitsOptions {
    std::uint64_t batch = 1024;                 ///< seeds a batch
    std::span<const std::uint64_t> seeds = {};  ///< nodes that batches are drawn from; empty: all
};

/// Returns for each node how often a batch is expected to sample it. Seeds are equally likely; a
/// node that is reached with probability p passes p * min(1, fan-out / degree) on to each of its
/// neighbours, hop by hop, and probabilities are added, not more than 1 a hop. (Kaler et al.,
/// "Communication-efficient graph neural networks with probabilistic neighborhood expansion
/// analysis and caching", MLSys 2023, multiply the complements instead.) `fanouts`: a hop each, -1
/// for all. Reads all edges once a hop. Throws kInvalidArgument for a graph whose edges do not
/// begin and end at the same nodes, a fan-out below -1 and a seed that is not there. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> expected_visits(
    const Graph& graph, std::span<const std::int64_t> fanouts,
    const ExpectedVisitsOptions& options = {});

/// Returns for each of `rows` rows how many batches of the trace have it. Throws kInvalidArgument
/// for a row beyond them. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> batch_counts(const RowTrace& trace,
                                                            std::uint64_t rows);

/// The rows of the highest heat that is above 0, highest first, of equals the lowest number: at
/// most `count`. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<std::uint64_t> hottest_rows(std::span<const double> heat,
                                                                   std::uint64_t count);

}  // namespace penstock
