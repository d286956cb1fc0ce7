// SPDX-License-Identifier: Apache-2.0
// The rows that are used most, found before or without a run, to have them in memory from the
// beginning.
//
//     const auto heat = penstock::expected_visits(graph, {10, 5, 5}, {.batch = 1024});
//     const auto hot = penstock::hottest_rows(heat, 100'000);
#pragma once

#include <penstock/error.hpp>
#include <penstock/graph.hpp>
#include <penstock/neighbor_sampler.hpp>
#include <penstock/row_simulation.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// Returns for each node the number of edges that begin at it. A neighbourhood samples a node by
/// its edges, so this is a measure of its use. Reads all edges. Throws kInvalidArgument for an edge
/// of a node that does not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> out_degrees(const Graph& graph);
/// The same for several types of nodes: a list for each, over all relations of the sampler.
[[nodiscard]] PENSTOCK_API std::vector<std::vector<double>> out_degrees(
    const NeighborSampler& sampler);

struct ExpectedVisitsOptions {
    std::uint64_t batch = 1024;                 ///< seeds of a batch
    std::span<const std::uint64_t> seeds = {};  ///< nodes that batches are drawn from; empty: all
};

/// Returns for each node the expected number of times that a batch samples it. Seeds are equally
/// likely. A node that is reached with probability p passes p * min(1, fan-out / degree) on to each
/// of its neighbours, hop by hop. Probabilities are added, up to 1 in a hop. (Kaler et al.,
/// "Communication-efficient graph neural networks with probabilistic neighborhood expansion
/// analysis and caching", MLSys 2023, multiply the complements instead.) `fanouts`: one for each
/// hop, -1 for all. Reads all edges once for each hop. Throws kInvalidArgument for a graph whose
/// edges do not begin and end at the same nodes, for a fan-out below -1 and for a seed that does
/// not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> expected_visits(
    const Graph& graph, std::span<const std::int64_t> fanouts,
    const ExpectedVisitsOptions& options = {});

/// The same for nodes and edges of several types: for each type the visits by batches of this
/// sampler, with its fan-outs. Probabilities of a node are added over all relations. `seeds`: the
/// nodes that batches are drawn from, `batch` of each type that is there; empty: all nodes of all
/// types. The sampler's `replace` and `disjoint` make no difference. Reads all edges once for each
/// hop. Throws kInvalidArgument for a seed of a type or a node that does not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<std::vector<double>> expected_visits(
    const NeighborSampler& sampler, std::span<const SeedNodes> seeds = {},
    std::uint64_t batch = 1024);

/// Returns for each of `rows` rows the number of batches of the trace that have it. Throws
/// kInvalidArgument for a row beyond them. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> batch_counts(const RowTrace& trace,
                                                            std::uint64_t rows);

/// At most `count` rows with the highest heat above 0, the highest first; of equal ones the lower
/// number first. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<std::uint64_t> hottest_rows(std::span<const double> heat,
                                                                   std::uint64_t count);

}  // namespace penstock
