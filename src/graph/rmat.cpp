// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "graph/graph_edges.hpp"
#include "graph/narrow_array.hpp"
#include "graph/random_stream.hpp"

#include <penstock/graph.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace penstock {

namespace {

constexpr std::string_view kMakingRmat = "make an R-MAT graph";
constexpr std::string_view kMakingRows = "make rows of Zipf's law";
constexpr std::uint32_t kScaleMax = 40;
constexpr std::uint64_t kRmatEdgesMax = std::uint64_t{1} << 44U;
constexpr double kUnit = 4294967296.0;  // 2^32: the probabilities are compared with 32 bits

base::Result<void> check_rmat(const RmatOptions& options) {
    const double sum = options.a + options.b + options.c;
    // The sum of three decimals may be one by a rounding.
    if (!(options.a >= 0 && options.b >= 0 && options.c >= 0 && sum <= 1 + 1e-9)) {
        return base::fail(base::error(
            ErrorCode::kInvalidArgument, kMakingRmat,
            fmt::format("a, b, c: expected probabilities, up to 1 in all, got {}, {} and {}",
                        options.a, options.b, options.c)));
    }
    if (options.scale < 1 || options.scale > kScaleMax) {
        return base::fail(
            base::error(ErrorCode::kInvalidArgument, kMakingRmat,
                        fmt::format("scale: expected 1 to {}, got {}", kScaleMax, options.scale)));
    }
    if (options.edges_per_node > kRmatEdgesMax >> options.scale) {
        return base::fail(base::error(
            ErrorCode::kInvalidArgument, kMakingRmat,
            fmt::format("edges_per_node: expected 0 to {} at scale {}, got {}",
                        kRmatEdgesMax >> options.scale, options.scale, options.edges_per_node)));
    }
    return {};
}

struct Edge {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
};

/// Edge number `i`, from its own random numbers: two levels of the matrix from each.
class RmatEdges {
public:
    explicit RmatEdges(const RmatOptions& options)
        : a_(static_cast<std::uint64_t>(options.a * kUnit)),
          ab_(static_cast<std::uint64_t>((options.a + options.b) * kUnit)),
          abc_(static_cast<std::uint64_t>((options.a + options.b + options.c) * kUnit)),
          scale_(options.scale),
          key_(graph::joined(1, options.seed)),
          numbers_(options.scale, graph::joined(2, options.seed)),
          shuffle_(options.shuffle) {}

    [[nodiscard]] Edge operator()(std::uint64_t i) const {
        graph::RandomStream random(graph::joined(key_, i));
        Edge edge;
        std::uint64_t bits = 0;
        for (std::uint32_t level = 0; level < scale_; ++level) {
            bits = level % 2 == 0 ? random.bits() : bits >> 32U;
            const std::uint64_t drawn = bits & 0xffffffffU;
            const auto from = static_cast<std::uint64_t>(drawn >= ab_);
            const auto to =
                static_cast<std::uint64_t>((drawn >= a_ && drawn < ab_) || drawn >= abc_);
            edge.from = (edge.from << 1U) | from;
            edge.to = (edge.to << 1U) | to;
        }
        return shuffle_ ? Edge{numbers_(edge.from), numbers_(edge.to)} : edge;
    }

private:
    std::uint64_t a_;
    std::uint64_t ab_;
    std::uint64_t abc_;
    std::uint32_t scale_;
    std::uint64_t key_;
    graph::Permutation numbers_;
    bool shuffle_;
};

base::Result<Graph> made_rmat(const RmatOptions& options) {
    PENSTOCK_CHECK(check_rmat(options));
    const std::uint64_t nodes = std::uint64_t{1} << options.scale;
    const std::uint64_t edges = options.edges_per_node << options.scale;
    const std::uint64_t end_bytes = graph::NarrowArray::is_wide(nodes) ? 8U : 4U;
    // Both ends of each edge in the order that they are made in, then the graph.
    PENSTOCK_CHECK(graph::check_memory(kMakingRmat, edges * 3 * end_bytes + nodes * 8));
    return base::as_result(kMakingRmat, [&]() -> base::Result<Graph> {
        const RmatEdges edge_of(options);
        graph::NarrowArray from(edges, nodes);
        graph::NarrowArray to(edges, nodes);
        for (std::uint64_t i = 0; i < edges; ++i) {
            const Edge edge = edge_of(i);
            from.set(i, edge.from);
            to.set(i, edge.to);
        }
        return graph::sorted_graph(kMakingRmat, from.view(), to.view(), nodes, nodes, false);
    });
}

/// The integral of x^-exponent and its inverse, which rejection-inversion works with.
class ZipfLaw {
public:
    ZipfLaw(std::uint64_t rows, double exponent)
        : rows_(static_cast<double>(rows)),
          exponent_(exponent),
          first_(integral(1.5) - 1),
          last_(integral(rows_ + 0.5)),
          near_(2 - inverse(integral(2.5) - std::pow(2.0, -exponent))) {}

    /// 1 to rows.
    [[nodiscard]] std::uint64_t draw(graph::RandomStream& random) const {
        for (;;) {
            const double area = last_ + random.unit() * (first_ - last_);
            const double x = inverse(area);
            const double rank = std::clamp(std::floor(x + 0.5), 1.0, rows_);
            if (rank - x <= near_ || area >= integral(rank + 0.5) - std::pow(rank, -exponent_)) {
                return static_cast<std::uint64_t>(rank);
            }
        }
    }

private:
    // Both as series of expm1 and log1p where the exponent is near 1, where the closed form is 0/0.
    [[nodiscard]] double integral(double x) const {
        const double logarithm = std::log(x);
        const double t = (1 - exponent_) * logarithm;
        return std::abs(t) < 1e-8 ? logarithm * (1 + t / 2) : std::expm1(t) / t * logarithm;
    }
    [[nodiscard]] double inverse(double area) const {
        const double t = std::max(area * (1 - exponent_), -1.0);
        return std::exp(std::abs(t) < 1e-8 ? area * (1 - t / 2) : std::log1p(t) / t * area);
    }

    double rows_;
    double exponent_;
    double first_;
    double last_;
    double near_;
};

}  // namespace

Graph rmat_graph(const RmatOptions& options) {
    return base::unwrap(made_rmat(options));
}

ZipfRows::ZipfRows(std::uint64_t rows, double exponent, std::uint64_t seed)
    : rows_(rows), exponent_(exponent), seed_(seed) {
    constexpr std::uint64_t kRowsMax = std::uint64_t{1} << 53U;  // a double has all of them
    if (rows < 1 || rows > kRowsMax) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kMakingRows,
                                fmt::format("rows: expected 1 to {}, got {}", kRowsMax, rows)));
    }
    if (!(exponent >= 0 && exponent <= 8)) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kMakingRows,
                                fmt::format("exponent: expected 0 to 8, got {}", exponent)));
    }
}

void ZipfRows::fill(std::span<std::uint64_t> ids, std::uint64_t batch) const {
    graph::RandomStream random(graph::joined(graph::joined(3, seed_), batch));
    if (exponent_ == 0) {
        for (std::uint64_t& id : ids) {
            id = random.below(rows_);
        }
        return;
    }
    std::uint32_t bits = 1;
    while (std::uint64_t{1} << bits < rows_) {
        ++bits;
    }
    const graph::Permutation numbers(bits, graph::joined(4, seed_));
    const ZipfLaw law(rows_, exponent_);
    for (std::uint64_t& id : ids) {
        // A number that is no row is the next to be permuted, until one is: so that too is a
        // bijection.
        id = numbers(law.draw(random) - 1);
        while (id >= rows_) {
            id = numbers(id);
        }
    }
}

}  // namespace penstock
