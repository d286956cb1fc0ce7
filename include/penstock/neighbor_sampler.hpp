// SPDX-License-Identifier: Apache-2.0
// Neighbourhoods of nodes, sampled hop by hop, for the training of graph neural networks.
//
//     const penstock::NeighborSampler sampler(graph, {10, 5, 5}, {.seed = 1});
//     const penstock::Sample sample = sampler.sample(seeds, batch_number);
//     rows.gather(sample.nodes[0].ids, out);
#pragma once

#include <penstock/error.hpp>
#include <penstock/graph.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace penstock {

/// Edges of one type, and the number of them to sample.
struct SampledRelation {
    Graph graph;
    std::uint32_t source = 0;       ///< the type of the nodes that its edges begin at
    std::uint32_t destination = 0;  ///< the type of the nodes that they end at
    /// For each hop, the number of edges to sample for a node: 0 or more, or -1 for all.
    std::vector<std::int64_t> fanouts = {};
};

struct SamplerOptions {
    /// Draws with replacement: a node with an edge gets exactly the number of edges of the hop, and
    /// an edge may be repeated. Otherwise each edge is drawn at most once, so a node with few edges
    /// gets all of them.
    bool replace = false;
    /// Makes a separate neighbourhood for each seed: a node that two seeds reach is there twice,
    /// and SampledNodes::trees has the seed of each node.
    bool disjoint = false;
    /// A sample depends only on it and on the number of the batch.
    std::uint64_t seed = 0;
    /// Threads for a sample, including the caller's. They change the time of a sample, not its
    /// content.
    std::uint32_t threads = 1;
};

/// Nodes of one type to begin with.
struct SeedNodes {
    std::uint32_t type = 0;
    std::span<const std::uint64_t> ids = {};
};

/// Nodes of one type: first the seeds in their given order, then the new nodes of each hop. Each
/// node occurs once (with `disjoint`: once in each tree), except for repeated seeds.
struct SampledNodes {
    std::vector<std::uint64_t> ids = {};
    std::vector<std::uint64_t> trees = {};    ///< with `disjoint`: the number of the seed
    std::vector<std::uint64_t> per_hop = {};  ///< number of seeds, then of new nodes in each hop
};

/// Edges of one type, in the order in which they were sampled.
struct SampledEdges {
    std::vector<std::uint64_t> from = {};     ///< places in SampledNodes::ids of the source's type
    std::vector<std::uint64_t> to = {};       ///< places for the destination's type
    std::vector<std::uint64_t> ids = {};      ///< numbers of the edges in their graph
    std::vector<std::uint64_t> per_hop = {};  ///< number of edges in each hop
};

struct Sample {
    std::vector<SampledNodes> nodes = {};  ///< by type
    std::vector<SampledEdges> edges = {};  ///< by relation
};

/// Samples neighbourhoods: in each hop, for each node of the previous hop, edges that end there,
/// chosen uniformly. Movable. Thread-safe: several threads may sample concurrently.
///
/// Without replacement k edges of n are chosen by Floyd's algorithm (J. Bentley and R. Floyd,
/// "Programming Pearls: A Sample of Brilliance", CACM 30(9), 1987); the random numbers of a node
/// are SplitMix64's (Steele, Lea and Flood, OOPSLA 2014), seeded by the options' seed, the batch,
/// the hop, the relation and the node's place, bounded without bias by Lemire's method (ACM TOMACS
/// 29(1), 2019).
class PENSTOCK_API NeighborSampler {
public:
    /// Samples nodes of several types: there are `nodes[t]` of type t. Throws kInvalidArgument for
    /// a relation with an unknown type, with a graph of other numbers of nodes, with another number
    /// of hops than the first, or with a fan-out below -1.
    NeighborSampler(std::vector<std::uint64_t> nodes, std::vector<SampledRelation> relations,
                    const SamplerOptions& options = {});
    /// Samples a graph of one type of nodes and edges.
    NeighborSampler(const Graph& graph, std::vector<std::int64_t> fanouts,
                    const SamplerOptions& options = {});

    /// Samples a neighbourhood. The same seeds and batch number always give the same sample. Throws
    /// kInvalidArgument with the place of a seed that does not exist, kDamaged for a graph that was
    /// not checked and is invalid, kOutOfMemory.
    [[nodiscard]] Sample sample(std::span<const SeedNodes> seeds, std::uint64_t batch = 0) const;
    /// Begins with nodes of type 0.
    [[nodiscard]] Sample sample(std::span<const std::uint64_t> seeds,
                                std::uint64_t batch = 0) const;

    [[nodiscard]] std::uint32_t hops() const noexcept;
    [[nodiscard]] const std::vector<std::uint64_t>& nodes() const noexcept;
    [[nodiscard]] const std::vector<SampledRelation>& relations() const noexcept;

private:
    struct Impl;
    std::shared_ptr<const Impl> impl_;
};

}  // namespace penstock
