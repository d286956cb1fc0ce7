// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"

#include <penstock/hot_rows.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace penstock {

namespace {

constexpr std::string_view kHotRows = "hot rows";

[[noreturn]] void refuse_heat(const std::string& message) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kHotRows, message));
}

void check_node(std::uint64_t node, std::uint64_t nodes, std::string_view of, std::uint64_t i) {
    if (node >= nodes) {
        refuse_heat(
            fmt::format("{}[{}]: {} is no node; there are {}, from 0 on", of, i, node, nodes));
    }
}

}  // namespace

std::vector<double> out_degrees(const Graph& graph) {
    std::vector<double> out(graph.sources());
    const IndexArray& indices = graph.indices();
    for (std::uint64_t i = 0; i < indices.size(); ++i) {
        const std::uint64_t node = indices[i];
        check_node(node, out.size(), "indices", i);
        ++out[node];
    }
    return out;
}

std::vector<double> expected_visits(const Graph& graph, std::span<const std::int64_t> fanouts,
                                    const ExpectedVisitsOptions& options) {
    const std::uint64_t nodes = graph.destinations();
    if (graph.sources() != nodes) {
        refuse_heat(
            fmt::format("graph: its edges begin at {} nodes and end at {}; expected the "
                        "same nodes",
                        graph.sources(), nodes));
    }
    std::vector<double> reached(nodes);
    const std::uint64_t seeds = options.seeds.empty() ? nodes : options.seeds.size();
    const double of_seed =
        seeds == 0 ? 0
                   : std::min(1.0, static_cast<double>(options.batch) / static_cast<double>(seeds));
    if (options.seeds.empty()) {
        std::fill(reached.begin(), reached.end(), of_seed);
    }
    for (std::size_t i = 0; i < options.seeds.size(); ++i) {
        check_node(options.seeds[i], nodes, "seeds", i);
        reached[options.seeds[i]] = of_seed;
    }
    std::vector<double> visits = reached;
    for (const std::int64_t fanout : fanouts) {
        if (fanout < -1) {
            refuse_heat(fmt::format("fanouts: got {}; expected -1 for all, or 0 or more", fanout));
        }
        std::vector<double> next(nodes);
        for (std::uint64_t node = 0; node < nodes; ++node) {
            const std::uint64_t begin = graph.indptr()[node];
            const std::uint64_t end = graph.indptr()[node + 1];
            if (reached[node] == 0 || begin >= end || end > graph.indices().size()) {
                continue;
            }
            const auto degree = static_cast<double>(end - begin);
            const double share =
                fanout == -1 ? 1 : std::min(1.0, static_cast<double>(fanout) / degree);
            for (std::uint64_t i = begin; i < end; ++i) {
                const std::uint64_t neighbor = graph.indices()[i];
                check_node(neighbor, nodes, "indices", i);
                next[neighbor] += reached[node] * share;
            }
        }
        for (std::uint64_t node = 0; node < nodes; ++node) {
            next[node] = std::min(next[node], 1.0);
            visits[node] += next[node];
        }
        reached = std::move(next);
    }
    return visits;
}

std::vector<double> batch_counts(const RowTrace& trace, std::uint64_t rows) {
    std::vector<double> out(rows);
    std::vector<std::uint64_t> seen(rows);  // the last batch, from 1 on
    for (std::uint64_t i = 0; i < trace.ends.size(); ++i) {
        for (const std::uint64_t id : trace.batch(i)) {
            if (id >= rows) {
                refuse_heat(fmt::format("trace: batch {} has the row {}; there are {}, from 0 on",
                                        i, id, rows));
            }
            out[id] += seen[id] == i + 1 ? 0 : 1;
            seen[id] = i + 1;
        }
    }
    return out;
}

std::vector<std::uint64_t> hottest_rows(std::span<const double> heat, std::uint64_t count) {
    std::vector<std::uint64_t> rows;
    for (std::uint64_t row = 0; row < heat.size(); ++row) {
        if (heat[row] > 0) {  // nor is what is no number
            rows.push_back(row);
        }
    }
    const auto kept = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(count, rows.size()));
    std::partial_sort(rows.begin(), rows.begin() + kept, rows.end(),
                      [heat](std::uint64_t a, std::uint64_t b) {
                          return heat[a] != heat[b] ? heat[a] > heat[b] : a < b;
                      });
    rows.resize(static_cast<std::size_t>(kept));
    return rows;
}

}  // namespace penstock
