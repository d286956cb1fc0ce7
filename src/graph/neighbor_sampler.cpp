// SPDX-License-Identifier: Apache-2.0
// A hop has two steps for each relation. Which edges are sampled, and where they begin, follows
// from a node's place alone, so threads share that. Then the nodes that they begin at are numbered
// in the order of the edges, by one thread.
#include "base/raise.hpp"
#include "base/start_threads.hpp"
#include "graph/node_numbers.hpp"
#include "graph/picks.hpp"
#include "graph/random_stream.hpp"

#include <penstock/graph.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

namespace penstock {

struct NeighborSampler::Impl {
    std::vector<std::uint64_t> nodes;
    std::vector<SampledRelation> relations;
    SamplerOptions options;
    std::uint32_t hops = 0;
};

namespace {

using graph::NodeNumbers;
using graph::Picks;
using graph::RandomStream;

constexpr std::string_view kSampling = "sample";
constexpr std::size_t kPartNodes = 512;  // that a thread takes at a time

[[noreturn]] void refuse_sample(ErrorCode code, const std::string& message) {
    base::raise(base::error(code, kSampling, message));
}

/// Edges that were chosen for some nodes, one node after the other.
struct ChosenEdges {
    std::vector<std::uint64_t> counts;  ///< by node
    std::vector<std::uint64_t> begins;  ///< the node that an edge begins at
    std::vector<std::uint64_t> ids;
};

/// The work of a hop for one relation: nodes from place `begin` to `end` of their type.
struct HopPart {
    const SampledRelation* relation = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t key = 0;
    std::int64_t fanout = 0;
};

class OneSample {
public:
    OneSample(const std::vector<std::uint64_t>& nodes,
              const std::vector<SampledRelation>& relations, const SamplerOptions& options,
              std::uint64_t batch)
        : counts_(nodes),
          relations_(relations),
          options_(options),
          key_(graph::joined(graph::joined(0, options.seed), batch)) {
        made_.nodes.resize(nodes.size());
        made_.edges.resize(relations.size());
        begins_.resize(nodes.size());
    }

    void add_seeds(std::span<const SeedNodes> seeds) {
        std::vector<std::uint64_t> expected(counts_.size());
        for (const SeedNodes& some : seeds) {
            if (some.type >= counts_.size()) {
                refuse_sample(ErrorCode::kInvalidArgument,
                              fmt::format("seeds: {} is no type of nodes; there are {}, from 0 on",
                                          some.type, counts_.size()));
            }
            expected[some.type] += some.ids.size();
        }
        for (const std::uint64_t count : expected) {
            numbers_.emplace_back(std::min(count, NodeNumbers::kPlacesMax) * 8);
        }
        for (const SeedNodes& some : seeds) {
            for (std::size_t i = 0; i < some.ids.size(); ++i) {
                if (some.ids[i] >= counts_[some.type]) {
                    refuse_sample(ErrorCode::kInvalidArgument,
                                  fmt::format("seeds[{}]: {} is no node; there are {}, from 0 on",
                                              i, some.ids[i], counts_[some.type]));
                }
                append(some.type, some.ids[i], trees_);
                trees_ += options_.disjoint ? 1U : 0U;
            }
        }
        for (SampledNodes& type : made_.nodes) {
            type.per_hop.push_back(type.ids.size());
        }
    }

    void add_hop(std::uint32_t hop) {
        std::vector<std::uint64_t> ends;
        for (const SampledNodes& type : made_.nodes) {
            ends.push_back(type.ids.size());
        }
        for (std::size_t r = 0; r < relations_.size(); ++r) {
            const SampledRelation& relation = relations_[r];
            HopPart part;
            part.relation = &relation;
            part.begin = begins_[relation.destination];
            part.end = ends[relation.destination];
            part.key = graph::joined(graph::joined(key_, hop), r);
            part.fanout = relation.fanouts[hop];
            const std::uint64_t before = made_.edges[r].from.size();
            if (part.fanout != 0) {
                std::uint64_t first = part.begin;
                for (const ChosenEdges& chosen : chosen_for(part)) {
                    add_edges(r, first, chosen);
                    first += chosen.counts.size();
                }
            }
            made_.edges[r].per_hop.push_back(made_.edges[r].from.size() - before);
        }
        begins_ = ends;
        for (std::size_t type = 0; type < ends.size(); ++type) {
            made_.nodes[type].per_hop.push_back(made_.nodes[type].ids.size() - ends[type]);
        }
    }

    [[nodiscard]] Sample take() { return std::move(made_); }

private:
    /// The place of a node; a new one if it has none. Seeds always have a new one, and the first
    /// of several equal ones is what edges begin at.
    std::uint64_t append(std::uint32_t type, std::uint64_t node, std::uint32_t tree) {
        SampledNodes& nodes = made_.nodes[type];
        const std::uint64_t next = nodes.ids.size();
        if (next >= NodeNumbers::kPlacesMax) {
            refuse_sample(ErrorCode::kOutOfMemory,
                          fmt::format("more than {} nodes of a type; take fewer seeds a batch, or "
                                      "smaller fan-outs",
                                      NodeNumbers::kPlacesMax));
        }
        const std::uint64_t place = numbers_[type].place_of(node, tree, next);
        if (place == next || nodes.per_hop.empty()) {
            nodes.ids.push_back(node);
            if (options_.disjoint) {
                nodes.trees.push_back(tree);
            }
        }
        return place;
    }

    /// Those of nodes from place `first` on.
    void add_edges(std::size_t r, std::uint64_t first, const ChosenEdges& chosen) {
        const SampledRelation& relation = relations_[r];
        SampledEdges& edges = made_.edges[r];
        std::size_t at = 0;
        for (std::size_t i = 0; i < chosen.counts.size(); ++i) {
            const std::uint64_t to = first + i;
            const auto tree = static_cast<std::uint32_t>(
                options_.disjoint ? made_.nodes[relation.destination].trees[to] : 0U);
            for (std::uint64_t left = chosen.counts[i]; left != 0; --left, ++at) {
                edges.from.push_back(append(relation.source, chosen.begins[at], tree));
                edges.to.push_back(to);
                edges.ids.push_back(chosen.ids[at]);
            }
        }
    }

    /// For parts of kPartNodes nodes each.
    std::vector<ChosenEdges> chosen_for(const HopPart& part) {
        const std::size_t parts = (part.end - part.begin + kPartNodes - 1) / kPartNodes;
        std::vector<ChosenEdges> chosen(parts);
        std::atomic<std::size_t> next{0};
        std::mutex mutex;
        std::exception_ptr failed;
        const auto work = [&] {
            try {
                Picks picks;
                for (std::size_t i = next++; i < parts; i = next++) {
                    choose(part, i, picks, chosen[i]);
                }
            } catch (...) {
                next = parts;
                const std::lock_guard lock(mutex);
                failed = std::current_exception();
            }
        };
        const std::size_t threads = std::min<std::size_t>(options_.threads, parts);
        std::vector<std::jthread> helpers;
        if (threads > 1) {
            base::start_threads(helpers, threads - 1, work);
        }
        work();
        helpers.clear();
        if (failed) {
            std::rethrow_exception(failed);
        }
        return chosen;
    }

    void choose(const HopPart& part, std::size_t number, Picks& picks, ChosenEdges& chosen) const {
        const Graph& graph = part.relation->graph;
        const std::vector<std::uint64_t>& ids = made_.nodes[part.relation->destination].ids;
        const std::uint64_t begin = part.begin + number * kPartNodes;
        const std::uint64_t end = std::min(begin + kPartNodes, part.end);
        for (std::uint64_t place = begin; place < end; ++place) {
            const Graph::Range range = graph.edges_to(ids[place]);
            chosen.counts.push_back(graph::pick_count(range.size(), part.fanout, options_.replace));
            picks.choose(range.size(), part.fanout, options_.replace,
                         RandomStream(graph::joined(part.key, place)),
                         [&](std::uint64_t pick) { chosen.ids.push_back(range.begin + pick); });
        }
        // Apart from choosing, so that several of these reads are under way at once.
        for (std::uint64_t& id : chosen.ids) {
            chosen.begins.push_back(graph.source_of(id));
            id = graph.edge_id(id);
        }
    }

    const std::vector<std::uint64_t>& counts_;
    const std::vector<SampledRelation>& relations_;
    const SamplerOptions& options_;
    std::uint64_t key_;
    std::uint32_t trees_ = 0;  ///< that the seeds before this one have
    std::vector<NodeNumbers> numbers_;
    std::vector<std::uint64_t> begins_;  ///< by type: the first node that the last hop found
    Sample made_;
};

void check_relation(const std::vector<std::uint64_t>& nodes,
                    const std::vector<SampledRelation>& relations, std::size_t r, bool replace) {
    const SampledRelation& relation = relations[r];
    if (relation.source >= nodes.size() || relation.destination >= nodes.size()) {
        refuse_sample(ErrorCode::kInvalidArgument,
                      fmt::format("relations[{}]: from type {} to {}; there are {}, from 0 on", r,
                                  relation.source, relation.destination, nodes.size()));
    }
    if (relation.graph.sources() != nodes[relation.source] ||
        relation.graph.destinations() != nodes[relation.destination]) {
        refuse_sample(
            ErrorCode::kInvalidArgument,
            fmt::format("relations[{}]: its graph is of {} nodes to {}; expected {} and {}", r,
                        relation.graph.sources(), relation.graph.destinations(),
                        nodes[relation.source], nodes[relation.destination]));
    }
    if (relation.fanouts.size() != relations[0].fanouts.size()) {
        refuse_sample(ErrorCode::kInvalidArgument,
                      fmt::format("relations[{}]: {} fan-outs, and relations[0] has {}; expected "
                                  "as many hops of each",
                                  r, relation.fanouts.size(), relations[0].fanouts.size()));
    }
    // With replacement a node of one edge has as many as were asked for.
    const std::int64_t most = std::int64_t{1} << (replace ? 20U : 32U);
    for (std::size_t hop = 0; hop < relation.fanouts.size(); ++hop) {
        if (relation.fanouts[hop] < -1 || relation.fanouts[hop] > most) {
            refuse_sample(ErrorCode::kInvalidArgument,
                          fmt::format("fanouts[{}] of relations[{}]: expected 0 to {}, or -1 for "
                                      "all, got {}",
                                      hop, r, most, relation.fanouts[hop]));
        }
    }
}

}  // namespace

NeighborSampler::NeighborSampler(std::vector<std::uint64_t> nodes,
                                 std::vector<SampledRelation> relations,
                                 const SamplerOptions& options) {
    for (std::size_t r = 0; r < relations.size(); ++r) {
        check_relation(nodes, relations, r, options.replace);
    }
    if (options.threads < 1 || options.threads > 4096) {
        refuse_sample(ErrorCode::kInvalidArgument,
                      fmt::format("threads: expected 1 to 4096, got {}", options.threads));
    }
    const auto made = std::make_shared<Impl>();
    made->hops = relations.empty() ? 0 : static_cast<std::uint32_t>(relations[0].fanouts.size());
    made->nodes = std::move(nodes);
    made->relations = std::move(relations);
    made->options = options;
    impl_ = made;
}

NeighborSampler::NeighborSampler(const Graph& graph, std::vector<std::int64_t> fanouts,
                                 const SamplerOptions& options)
    : NeighborSampler({graph.destinations()},
                      {SampledRelation{.graph = graph, .fanouts = std::move(fanouts)}}, options) {}

Sample NeighborSampler::sample(std::span<const SeedNodes> seeds, std::uint64_t batch) const {
    try {
        OneSample one(impl_->nodes, impl_->relations, impl_->options, batch);
        one.add_seeds(seeds);
        for (std::uint32_t hop = 0; hop < impl_->hops; ++hop) {
            one.add_hop(hop);
        }
        return one.take();
    } catch (const std::bad_alloc&) {
        base::raise(base::out_of_memory(kSampling));
    }
}

Sample NeighborSampler::sample(std::span<const std::uint64_t> seeds, std::uint64_t batch) const {
    const SeedNodes of_type_0{.type = 0, .ids = seeds};
    return sample(std::span(&of_type_0, 1), batch);
}

std::uint32_t NeighborSampler::hops() const noexcept {
    return impl_->hops;
}

const std::vector<std::uint64_t>& NeighborSampler::nodes() const noexcept {
    return impl_->nodes;
}

const std::vector<SampledRelation>& NeighborSampler::relations() const noexcept {
    return impl_->relations;
}

}  // namespace penstock
