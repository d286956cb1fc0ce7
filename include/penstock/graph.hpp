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

/// Integers of 32 or 64 bits at any address, which their owner keeps. Copyable. Thread-safe.
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
    /// Element `i`, which has to exist; a negative one comes as 2^63 or more.
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
    std::string edge_ids = {};  ///< empty: an edge's number is its place in `indices`
    /// The type of the elements of raw files. Nothing: the files are .npy files, whose headers say
    /// it.
    std::optional<ElementType> type = {};
    /// Nothing: as many as destinations.
    std::optional<std::uint64_t> sources = {};
    /// Reads the files where they are, through the page cache, instead of copying them to memory.
    /// They must not be cut while the graph exists: the system ends a process that reads a mapped
    /// page beyond the end of its file (SIGBUS).
    bool mapped = false;
    /// Reads all of it once, and refuses what is invalid at once. Without it sampling finds the
    /// same when it gets there.
    bool check = true;
};

/// Edges of one type, by the node that they end at. The edges to node v come from the nodes
/// indices[indptr[v]] to indices[indptr[v + 1] - 1]. Cheap to copy: copies share it. Immutable,
/// thread-safe.
class PENSTOCK_API Graph {
public:
    /// On memory of the caller, which `keep` (or the caller) keeps alive. `indptr` has one element
    /// more than there are destinations. `sources`: nodes that edges begin at; nothing: as many as
    /// destinations. `edge_ids`: one an edge, or none. Throws kInvalidArgument for types that are
    /// no integers of 32 or 64 bits, for an `indptr` that is empty, does not begin with 0, falls,
    /// or does not end with the number of edges, and for a node that is not there. `check`: see
    /// GraphFiles.
    Graph(IndexArray indptr, IndexArray indices, std::optional<std::uint64_t> sources = {},
          IndexArray edge_ids = {}, std::shared_ptr<const void> keep = {}, bool check = true);
    /// Sorts a copy of the edges from[i] -> to[i]: those to one node keep their order, and edge i
    /// keeps number i. Throws kInvalidArgument for lists of different lengths and
    /// for nodes that are not there, kOutOfMemory.
    static Graph from_edges(IndexArray from, IndexArray to, std::uint64_t sources,
                            std::uint64_t destinations);
    /// Throws kDamaged for files that are not such a graph, what read_npy_header() throws, and
    /// errors of the system. Blocks.
    static Graph open(Engine& engine, const GraphFiles& files);

    [[nodiscard]] std::uint64_t sources() const noexcept;
    [[nodiscard]] std::uint64_t destinations() const noexcept;
    [[nodiscard]] std::uint64_t edges() const noexcept;
    /// Whether its arrays are mapped files.
    [[nodiscard]] bool mapped() const noexcept;
    [[nodiscard]] const IndexArray& indptr() const noexcept;
    [[nodiscard]] const IndexArray& indices() const noexcept;
    /// Empty where an edge's number is its place.
    [[nodiscard]] const IndexArray& edge_ids() const noexcept;

    /// Places in indices() of the edges that end at a node.
    struct Range {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }
    };
    /// Throws kInvalidArgument for a node that is not there; kDamaged where the memory or file
    /// changed since it was checked, or was not checked.
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
