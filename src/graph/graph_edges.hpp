// SPDX-License-Identifier: Apache-2.0
// A graph from its edges in any order: a counting sort by the node that each ends at.
#pragma once

#include "base/result.hpp"

#include <penstock/graph.hpp>

#include <cstdint>
#include <string_view>

namespace penstock::graph {

/// Edges from[i] -> to[i], whose nodes are known to exist. Edges to one node keep their order.
[[nodiscard]] base::Result<Graph> sorted_graph(std::string_view operation, const IndexArray& from,
                                               const IndexArray& to, std::uint64_t sources,
                                               std::uint64_t destinations, bool with_edge_ids);

/// An error where the memory that is left is less than `bytes`, which would otherwise end the
/// process when they are touched.
[[nodiscard]] base::Result<void> check_memory(std::string_view operation, std::uint64_t bytes);

}  // namespace penstock::graph
