// SPDX-License-Identifier: Apache-2.0
// Graphs and numbers of rows made from a seed, for tests and measurements.
#pragma once

#include <penstock/error.hpp>
#include <penstock/graph.hpp>

#include <cstdint>
#include <span>

namespace penstock {

/// The defaults are Graph500's (graph500.org, specification 2.0, section 3.3).
struct RmatOptions {
    std::uint32_t scale = 16;           ///< 2^scale nodes; at most 40
    std::uint64_t edges_per_node = 16;  ///< on average; edges that come twice and loops count
    /// Probabilities of the quarters of the matrix: a (low, low), b (low, high), c (high, low); the
    /// fourth has the rest. The first of each pair is of the node that an edge begins at.
    double a = 0.57;
    double b = 0.19;
    double c = 0.19;
    std::uint64_t seed = 1;
    bool shuffle = true;  ///< permutes the nodes' numbers; otherwise low ones have most edges
};

/// A recursive-matrix graph (Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph
/// Mining", SDM 2004). The same for the same options, always. Its memory: 4 bytes an edge (8 from
/// scale 33 on) and 8 a node. Throws kInvalidArgument for a scale out of range and for
/// probabilities that are negative or more than 1 in all; kOutOfMemory.
[[nodiscard]] PENSTOCK_API Graph rmat_graph(const RmatOptions& options = {});

/// Numbers of rows whose frequencies fall as Zipf's law says: the k-th most frequent of `rows` has
/// 1 / k^exponent of the first's. Exponent 0: all are equally frequent. Which rows are the frequent
/// ones follows from the seed too. Thread-safe.
///
/// By rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions", ACM TOMACS 6(3), 1996).
class PENSTOCK_API ZipfRows {
public:
    /// Throws kInvalidArgument for no rows, more than 2^53, and an exponent that is negative, above
    /// 8 or not finite.
    ZipfRows(std::uint64_t rows, double exponent, std::uint64_t seed = 1);
    /// The numbers of a batch: the same for the same batch and length, always.
    void fill(std::span<std::uint64_t> ids, std::uint64_t batch) const;

private:
    std::uint64_t rows_;
    double exponent_;
    std::uint64_t seed_;
};

}  // namespace penstock
