// SPDX-License-Identifier: Apache-2.0
// Graphs whose neighbours are sampled: compressed sparse columns (CSC), in memory or mapped from
// files.
//
//     const penstock::Graph graph = penstock::Graph::open(
//         engine, {.indptr = "indptr.npy", .indices = "indices.npy", .mapped = true});
//     graph.degree(7);  // edges that end at node 7
#pragma once

#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// A view of integers of 32 or 64 bits at any address; the owner keeps them alive. Copyable.
/// Thread-safe.
class IndexArray {
public:
    IndexArray() = default;
    explicit IndexArray(std::span<const std::int32_t> values) noexcept
        : IndexArray(values.data(), values.size(), ElementType::kI32) {}
    explicit IndexArray(std::span<const std::uint32_t> values) noexcept
        : IndexArray(values.data(), values.size(), ElementType::kU32) {}
    explicit IndexArray(std::span<const std::int64_t> values) noexcept
        : IndexArray(values.data(), values.size(), ElementType::kI64) {}
    explicit IndexArray(std::span<const std::uint64_t> values) noexcept
        : IndexArray(values.data(), values.size(), ElementType::kU64) {}
    /// `type`: kI32, kU32, kI64 or kU64; Graph refuses others.
    IndexArray(const void* data, std::uint64_t count, ElementType type) noexcept
        : data_(static_cast<const std::byte*>(data)), count_(count), type_(type) {}

    [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
    [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
    [[nodiscard]] ElementType type() const noexcept { return type_; }
    [[nodiscard]] const std::byte* data() const noexcept { return data_; }
    /// Element `i`, which must exist; a negative value is returned as 2^63 or more.
    [[nodiscard]] std::uint64_t operator[](std::uint64_t i) const noexcept {
        switch (type_) {
            case ElementType::kI32:
                return static_cast<std::uint64_t>(std::int64_t{at<std::int32_t>(i)});
            case ElementType::kU32:
                return at<std::uint32_t>(i);
            default:
                return at<std::uint64_t>(i);
        }
    }

private:
    template <typename Number>
    [[nodiscard]] Number at(std::uint64_t i) const noexcept {
        Number number = 0;
        std::memcpy(&number, data_ + i * sizeof number, sizeof number);
        return number;
    }

    const std::byte* data_ = nullptr;
    std::uint64_t count_ = 0;
    ElementType type_ = ElementType::kI64;
};

/// The files of a graph: `.npy` files of one dimension, or raw little-endian integers.
struct GraphFiles {
    std::string indptr;
    std::string indices;
    std::string edge_ids = {};  ///< empty: the number of an edge is its place in `indices`
    /// The type of the elements of raw files. Nothing: the files are .npy files with the type in
    /// their headers.
    std::optional<ElementType> type = {};
    /// The number of sources. Nothing: the number of destinations.
    std::optional<std::uint64_t> sources = {};
    /// Maps the files and reads through the page cache, instead of copying them to memory. They
    /// must not be truncated while the graph exists: the system ends a process that reads a mapped
    /// page beyond the end of its file (SIGBUS).
    bool mapped = false;
    /// Reads and checks all of it now. Without it, sampling finds the same errors later.
    bool check = true;
};

/// Edges of one type, by the node that they end at. The edges to node v come from the nodes
/// indices[indptr[v]] to indices[indptr[v + 1] - 1]. Cheap to copy, because copies share the data.
/// Immutable, thread-safe.
class PENSTOCK_API Graph {
public:
    /// A graph on memory of the caller, which `keep` (or the caller) keeps alive. `indptr` has one
    /// element more than there are destinations. `sources`: the number of nodes that edges begin
    /// at; nothing: the number of destinations. `edge_ids`: one for each edge, or none. Throws
    /// kInvalidArgument for types other than integers of 32 or 64 bits, for an `indptr` that is
    /// empty, does not begin with 0, decreases, or does not end with the number of edges, and for a
    /// node that does not exist. `check`: see GraphFiles.
    Graph(IndexArray indptr, IndexArray indices, std::optional<std::uint64_t> sources = {},
          IndexArray edge_ids = {}, std::shared_ptr<const void> keep = {}, bool check = true);
    /// Sorts a copy of the edges from[i] -> to[i]: edges to one node keep their order, and edge i
    /// keeps number i. Throws kInvalidArgument for lists of different lengths and for nodes that do
    /// not exist, kOutOfMemory.
    static Graph from_edges(IndexArray from, IndexArray to, std::uint64_t sources,
                            std::uint64_t destinations);
    /// Opens files. Throws kDamaged for an invalid graph, errors of read_npy_header(), and errors
    /// of the system. Blocks.
    static Graph open(Engine& engine, const GraphFiles& files);

    [[nodiscard]] std::uint64_t sources() const noexcept;
    [[nodiscard]] std::uint64_t destinations() const noexcept;
    [[nodiscard]] std::uint64_t edges() const noexcept;
    /// Whether its arrays are mapped files.
    [[nodiscard]] bool mapped() const noexcept;
    [[nodiscard]] const IndexArray& indptr() const noexcept;
    [[nodiscard]] const IndexArray& indices() const noexcept;
    /// Empty if the number of an edge is its place.
    [[nodiscard]] const IndexArray& edge_ids() const noexcept;

    /// Places in indices() of the edges that end at a node.
    struct Range {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }
    };
    /// Throws kInvalidArgument for a node that does not exist; kDamaged if the memory or file is
    /// invalid, because it was not checked or has changed since.
    [[nodiscard]] Range edges_to(std::uint64_t node) const;
    [[nodiscard]] std::uint64_t degree(std::uint64_t node) const { return edges_to(node).size(); }
    /// The node that the edge at a place of a Range begins at. Throws as edges_to().
    [[nodiscard]] std::uint64_t source_of(std::uint64_t place) const;
    /// The number of the edge at a place of a Range.
    [[nodiscard]] std::uint64_t edge_id(std::uint64_t place) const noexcept;

private:
    struct Impl;
    explicit Graph(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
    std::shared_ptr<const Impl> impl_;
};

// Neighbourhoods of nodes, sampled hop by hop, for the training of graph neural networks.
//
//     const penstock::NeighborSampler sampler(graph, {10, 5, 5}, {.seed = 1});
//     const penstock::Sample sample = sampler.sample(seeds, batch_number);
//     rows.gather(sample.nodes[0].ids, out);

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

// Graphs and row numbers that are made from a seed, for tests and measurements.

/// The defaults are Graph500's (graph500.org, specification 2.0, section 3.3).
struct RmatOptions {
    std::uint32_t scale = 16;           ///< 2^scale nodes; at most 40
    std::uint64_t edges_per_node = 16;  ///< on average; repeated edges and loops count
    /// Probabilities of the quarters of the matrix: a (low, low), b (low, high), c (high, low); the
    /// fourth has the rest. The first of each pair is for the node that an edge begins at.
    double a = 0.57;
    double b = 0.19;
    double c = 0.19;
    std::uint64_t seed = 1;
    bool shuffle = true;  ///< permutes the numbers of nodes; otherwise low ones have most edges
};

/// A recursive-matrix graph (Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph
/// Mining", SDM 2004). The same options always give the same graph. It takes 4 bytes for each edge
/// (8 from scale 33 on) and 8 for each node. Throws kInvalidArgument for a scale out of range and
/// for probabilities that are negative or more than 1 in total; kOutOfMemory.
[[nodiscard]] PENSTOCK_API Graph rmat_graph(const RmatOptions& options = {});

/// Row numbers with Zipf's distribution: the k-th most frequent of `rows` has 1 / k^exponent of the
/// frequency of the first. Exponent 0: all are equally frequent. The seed also decides which rows
/// are the frequent ones. Thread-safe.
///
/// By rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions", ACM TOMACS 6(3), 1996).
class PENSTOCK_API ZipfRows {
public:
    /// Throws kInvalidArgument for no rows, more than 2^53, and an exponent that is negative, above
    /// 8 or not finite.
    ZipfRows(std::uint64_t rows, double exponent, std::uint64_t seed = 1);
    /// The numbers of a batch. The same batch and length always give the same numbers.
    void fill(std::span<std::uint64_t> ids, std::uint64_t batch) const;

private:
    std::uint64_t rows_;
    double exponent_;
    std::uint64_t seed_;
};

}  // namespace penstock
