// SPDX-License-Identifier: Apache-2.0
// Graphs and row numbers that are made from a seed, for tests and measurements.
#pragma once

#include <penstock/error.hpp>
#include <penstock/graph.hpp>

#include <cstdint>
#include <span>

namespace penstock {

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
