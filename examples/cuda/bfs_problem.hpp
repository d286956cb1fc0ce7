// SPDX-License-Identifier: Apache-2.0
// A random graph whose lists of edges lie on storage, and what a search in memory finds in it.
#pragma once

#include "storage_bfs.hpp"

#include <penstock/penstock.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace storage_bfs {

inline constexpr std::uint64_t kInRow = 128;  // edges in a row of 512 bytes

struct Problem {
    std::vector<std::uint64_t> offsets{0};  ///< one more than there are nodes
    std::vector<std::uint32_t> expected;    ///< the distance of each node, kUnseen for the others
    std::uint32_t root = 0;
    std::size_t reached = 0;

    [[nodiscard]] std::uint32_t nodes() const {
        return static_cast<std::uint32_t>(offsets.size() - 1);
    }
};

/// The lists of edges, one after the other, as rows.
inline void write_edges(const std::shared_ptr<penstock::Engine>& engine, const std::string& path,
                        std::vector<std::uint32_t> edges) {
    edges.resize((edges.size() + kInRow - 1) / kInRow * kInRow);
    penstock::FeatureWriter writer(engine, path);
    writer.begin_table({"edges", "U32", {kInRow}});
    writer.append(std::as_bytes(std::span(edges)));
    writer.commit();
}

/// Writes the edges to `path`.
inline Problem make_problem(const std::shared_ptr<penstock::Engine>& engine,
                            const std::string& path, std::uint32_t scale) {
    const penstock::Graph graph = penstock::rmat_graph({.scale = scale});
    Problem problem;
    std::vector<std::uint32_t> edges;
    for (std::uint64_t node = 0; node < graph.destinations(); ++node) {
        const auto range = graph.edges_to(node);
        for (std::uint64_t place = range.begin; place < range.end; ++place) {
            edges.push_back(static_cast<std::uint32_t>(graph.source_of(place)));
        }
        problem.offsets.push_back(edges.size());
    }
    const auto& offsets = problem.offsets;
    while (problem.root + 1 < problem.nodes() &&
           offsets[problem.root + 1] == offsets[problem.root]) {
        ++problem.root;
    }
    problem.expected.assign(problem.nodes(), kUnseen);
    problem.expected[problem.root] = 0;
    std::vector<std::uint32_t> queue{problem.root};
    for (std::size_t i = 0; i < queue.size(); ++i) {
        for (std::uint64_t e = offsets[queue[i]]; e < offsets[queue[i] + 1]; ++e) {
            if (problem.expected[edges[e]] == kUnseen) {
                problem.expected[edges[e]] = problem.expected[queue[i]] + 1;
                queue.push_back(edges[e]);
            }
        }
    }
    problem.reached = queue.size();
    write_edges(engine, path, std::move(edges));
    return problem;
}

}  // namespace storage_bfs
