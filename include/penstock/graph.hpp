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

}  // namespace penstock
