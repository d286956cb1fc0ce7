// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"

#include <penstock/features.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

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

using HeatByType = std::vector<std::vector<double>>;

HeatByType none_of(const std::vector<std::uint64_t>& nodes) {
    HeatByType out;
    for (const std::uint64_t count : nodes) {
        out.emplace_back(count);
    }
    return out;
}

void add_degrees(const Graph& graph, std::vector<double>& out) {
    const IndexArray& indices = graph.indices();
    for (std::uint64_t i = 0; i < indices.size(); ++i) {
        const std::uint64_t node = indices[i];
        check_node(node, out.size(), "indices", i);
        ++out[node];
    }
}

// The probability that a node is a seed: `batch` of each type of seeds, or of all nodes without
// any.
HeatByType seeds_reached(const std::vector<std::uint64_t>& nodes, std::span<const SeedNodes> seeds,
                         std::uint64_t batch) {
    const auto share_of = [batch](std::uint64_t count) {
        return count == 0 ? 0
                          : std::min(1.0, static_cast<double>(batch) / static_cast<double>(count));
    };
    HeatByType reached = none_of(nodes);
    std::vector<std::uint64_t> counts(nodes.size());
    for (const SeedNodes& some : seeds) {
        if (some.type >= nodes.size()) {
            refuse_heat(fmt::format("seeds: {} is no type of nodes; there are {}, from 0 on",
                                    some.type, nodes.size()));
        }
        counts[some.type] += some.ids.size();
    }
    for (const SeedNodes& some : seeds) {
        for (std::size_t i = 0; i < some.ids.size(); ++i) {
            check_node(some.ids[i], nodes[some.type], "seeds", i);
            reached[some.type][some.ids[i]] = share_of(counts[some.type]);
        }
    }
    for (std::vector<double>& type : reached) {
        if (seeds.empty()) {
            std::fill(type.begin(), type.end(), share_of(type.size()));
        }
    }
    return reached;
}

// Nodes that are reached pass their probability on to those that the edges to them begin at.
void pass_on(const Graph& graph, std::int64_t fanout, const std::vector<double>& reached,
             std::vector<double>& next) {
    for (std::uint64_t node = 0; node < reached.size(); ++node) {
        const std::uint64_t begin = graph.indptr()[node];
        const std::uint64_t end = graph.indptr()[node + 1];
        if (reached[node] == 0 || begin >= end || end > graph.indices().size()) {
            continue;
        }
        const auto degree = static_cast<double>(end - begin);
        const double share = fanout == -1 ? 1 : std::min(1.0, static_cast<double>(fanout) / degree);
        for (std::uint64_t i = begin; i < end; ++i) {
            const std::uint64_t neighbor = graph.indices()[i];
            check_node(neighbor, next.size(), "indices", i);
            next[neighbor] += reached[node] * share;
        }
    }
}

HeatByType visits_from(HeatByType reached, std::span<const SampledRelation> relations,
                       std::size_t hops) {
    HeatByType visits = reached;
    for (std::size_t hop = 0; hop < hops; ++hop) {
        HeatByType next(reached.size());
        for (std::size_t type = 0; type < reached.size(); ++type) {
            next[type].resize(reached[type].size());
        }
        for (const SampledRelation& relation : relations) {
            pass_on(relation.graph, relation.fanouts[hop], reached[relation.destination],
                    next[relation.source]);
        }
        for (std::size_t type = 0; type < next.size(); ++type) {
            for (std::uint64_t node = 0; node < next[type].size(); ++node) {
                next[type][node] = std::min(next[type][node], 1.0);
                visits[type][node] += next[type][node];
            }
        }
        reached = std::move(next);
    }
    return visits;
}

}  // namespace

std::vector<double> out_degrees(const Graph& graph) {
    std::vector<double> out(graph.sources());
    add_degrees(graph, out);
    return out;
}

std::vector<std::vector<double>> out_degrees(const NeighborSampler& sampler) {
    HeatByType out = none_of(sampler.nodes());
    for (const SampledRelation& relation : sampler.relations()) {
        add_degrees(relation.graph, out[relation.source]);
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
    for (const std::int64_t fanout : fanouts) {
        if (fanout < -1) {
            refuse_heat(fmt::format("fanouts: got {}; expected -1 for all, or 0 or more", fanout));
        }
    }
    const SeedNodes seeds{.type = 0, .ids = options.seeds};
    const std::span<const SeedNodes> given(&seeds, options.seeds.empty() ? 0 : 1);
    const SampledRelation relation{.graph = graph, .fanouts = {fanouts.begin(), fanouts.end()}};
    return visits_from(seeds_reached({nodes}, given, options.batch), std::span(&relation, 1),
                       fanouts.size())[0];
}

std::vector<std::vector<double>> expected_visits(const NeighborSampler& sampler,
                                                 std::span<const SeedNodes> seeds,
                                                 std::uint64_t batch) {
    return visits_from(seeds_reached(sampler.nodes(), seeds, batch), sampler.relations(),
                       sampler.hops());
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
