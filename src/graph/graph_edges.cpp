// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_edges.hpp"

#include "base/text/units.hpp"
#include "graph/narrow_array.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::graph {

namespace {

struct SortedEdges {
    std::vector<std::uint64_t> indptr;
    NarrowArray indices;
    NarrowArray edge_ids;
};

}  // namespace

base::Result<void> check_memory(std::string_view operation, std::uint64_t bytes) {
    const std::uint64_t left_bytes = available_memory_bytes();
    if (bytes > left_bytes) {
        return base::fail(base::error(
            ErrorCode::kOutOfMemory, operation,
            fmt::format("the graph takes {} of memory and {} are left; use a machine with more, "
                        "or map its files",
                        base::format_bytes(bytes), base::format_bytes(left_bytes))));
    }
    return {};
}

base::Result<Graph> sorted_graph(std::string_view operation, const IndexArray& from,
                                 const IndexArray& to, std::uint64_t sources,
                                 std::uint64_t destinations, bool with_edge_ids) {
    const std::uint64_t edges = from.size();
    const std::uint64_t edge_bytes =
        (NarrowArray::is_wide(sources) ? 8U : 4U) + (!with_edge_ids                ? 0U
                                                     : NarrowArray::is_wide(edges) ? 8U
                                                                                   : 4U);
    PENSTOCK_CHECK(check_memory(operation, edges * edge_bytes + destinations * 8));
    return base::as_result(operation, [&]() -> base::Result<Graph> {
        const auto made = std::make_shared<SortedEdges>();
        // indptr[v + 2] counts the edges to v; after the sum indptr[v + 1] is where they begin, and
        // after all are placed where they end.
        std::vector<std::uint64_t>& indptr = made->indptr;
        indptr.resize(destinations + 2);
        for (std::uint64_t i = 0; i < edges; ++i) {
            ++indptr[to[i] + 2];
        }
        for (std::uint64_t v = 2; v < indptr.size(); ++v) {
            indptr[v] += indptr[v - 1];
        }
        made->indices = NarrowArray(edges, sources);
        made->edge_ids = NarrowArray(with_edge_ids ? edges : 0, edges);
        for (std::uint64_t i = 0; i < edges; ++i) {
            const std::uint64_t place = indptr[to[i] + 1]++;
            made->indices.set(place, from[i]);
            if (with_edge_ids) {
                made->edge_ids.set(place, i);
            }
        }
        indptr.pop_back();
        return Graph(IndexArray(indptr), made->indices.view(), sources, made->edge_ids.view(), made,
                     false);
    });
}

}  // namespace penstock::graph
