// SPDX-License-Identifier: Apache-2.0
// Graphs and rows from a seed: always the same, with the frequencies that their laws say.
#include "graph/random_stream.hpp"
#include "support/text_files.hpp"

#include <penstock/graph.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

namespace penstock::graph {
namespace {

using test::error_of;
using testing::HasSubstr;

std::vector<std::uint64_t> all_of(const IndexArray& array) {
    std::vector<std::uint64_t> out(array.size());
    for (std::uint64_t i = 0; i < array.size(); ++i) {
        out[i] = array[i];
    }
    return out;
}

TEST(RmatTest, IsTheSameForTheSameOptions) {
    const Graph one = rmat_graph({.scale = 10, .seed = 7});
    const Graph same = rmat_graph({.scale = 10, .seed = 7});
    const Graph other = rmat_graph({.scale = 10, .seed = 8});
    EXPECT_EQ(one.destinations(), 1024U);
    EXPECT_EQ(one.sources(), 1024U);
    EXPECT_EQ(one.edges(), 16384U);
    EXPECT_EQ(all_of(one.indices()), all_of(same.indices()));
    EXPECT_EQ(all_of(one.indptr()), all_of(same.indptr()));
    EXPECT_NE(all_of(one.indices()), all_of(other.indices()));
    // A change of what a seed gives changes every recorded measurement.
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < one.edges(); ++i) {
        sum = joined(sum, one.indices()[i]);
    }
    EXPECT_EQ(sum, 4515710952593905220U) << "the sum of all neighbours of this release";
}

// Unshuffled, the share of edges whose ends have a bit set is what the quarters say, at each level.
TEST(RmatTest, FillsTheQuartersAsAsked) {
    const RmatOptions options{.scale = 12, .a = 0.5, .b = 0.25, .c = 0.15, .shuffle = false};
    const Graph graph = rmat_graph(options);
    const auto edges = static_cast<double>(graph.edges());
    for (std::uint32_t level = 0; level < options.scale; ++level) {
        std::array<double, 4> quarters{};
        for (std::uint64_t to = 0; to < graph.destinations(); ++to) {
            const Graph::Range range = graph.edges_to(to);
            for (std::uint64_t place = range.begin; place < range.end; ++place) {
                const std::uint64_t from = graph.source_of(place);
                quarters.at(((from >> level) & 1U) * 2 + ((to >> level) & 1U)) += 1 / edges;
            }
        }
        // Five standard deviations of a share of 65,536 edges.
        EXPECT_NEAR(quarters[0], options.a, 0.01);
        EXPECT_NEAR(quarters[1], options.b, 0.01);
        EXPECT_NEAR(quarters[2], options.c, 0.01);
    }
}

TEST(RmatTest, ShufflingKeepsTheDegrees) {
    RmatOptions options{.scale = 9, .shuffle = false};
    const auto degrees = [&options] {
        const Graph graph = rmat_graph(options);
        std::vector<std::uint64_t> out(graph.destinations());
        for (std::uint64_t node = 0; node < out.size(); ++node) {
            out[node] = graph.degree(node);
        }
        return out;
    };
    std::vector<std::uint64_t> plain = degrees();
    options.shuffle = true;
    std::vector<std::uint64_t> shuffled = degrees();
    EXPECT_NE(plain, shuffled);
    std::sort(plain.begin(), plain.end());
    std::sort(shuffled.begin(), shuffled.end());
    EXPECT_EQ(plain, shuffled);
}

TEST(RmatTest, RefusesWhatIsNoGraph) {
    const auto refused = [](const RmatOptions& options) {
        return std::string(error_of([&] { static_cast<void>(rmat_graph(options)); }).what());
    };
    EXPECT_THAT(refused({.scale = 0}), HasSubstr("scale: expected 1 to 40, got 0"));
    EXPECT_THAT(refused({.scale = 41}), HasSubstr("scale: expected 1 to 40, got 41"));
    EXPECT_THAT(refused({.a = 0.9, .b = 0.2}), HasSubstr("expected probabilities"));
    EXPECT_THAT(refused({.a = -0.1}), HasSubstr("expected probabilities"));
    EXPECT_THAT(refused({.a = std::numeric_limits<double>::quiet_NaN()}),
                HasSubstr("expected probabilities"));
    EXPECT_THAT(refused({.scale = 30, .edges_per_node = std::uint64_t{1} << 60U}),
                HasSubstr("edges_per_node"));
    EXPECT_EQ(error_of([] { static_cast<void>(rmat_graph({.scale = 38})); }).reason(),
              ErrorCode::kOutOfMemory);
    EXPECT_EQ(rmat_graph({.scale = 1, .edges_per_node = 0}).edges(), 0U);
    EXPECT_EQ(rmat_graph({.scale = 5, .a = 1, .b = 0, .c = 0, .shuffle = false}).degree(0), 512U);
}

TEST(PermutationTest, IsABijection) {
    for (std::uint32_t bits = 1; bits <= 12; ++bits) {
        for (const std::uint64_t key : {0U, 1U, 99U}) {
            const Permutation permutation(bits, key);
            std::set<std::uint64_t> seen;
            for (std::uint64_t i = 0; i < std::uint64_t{1} << bits; ++i) {
                seen.insert(permutation(i));
            }
            EXPECT_EQ(seen.size(), std::uint64_t{1} << bits);
            EXPECT_LT(*seen.rbegin(), std::uint64_t{1} << bits);
        }
    }
}

class ZipfRowsTest : public testing::TestWithParam<double> {};

// The counts by frequency against the law; chi-square with 99.99 % of its distribution (Wilson and
// Hilferty's approximation).
TEST_P(ZipfRowsTest, FollowTheLaw) {
    constexpr std::uint64_t kRanks = 50;
    constexpr std::size_t kDraws = 200'000;
    const ZipfRows rows(kRanks, GetParam(), 11);
    std::vector<std::uint64_t> ids(kDraws);
    rows.fill(ids, 3);
    std::vector<double> counts(kRanks);
    for (const std::uint64_t id : ids) {
        ASSERT_LT(id, kRanks);
        counts[id] += 1;
    }
    std::sort(counts.begin(), counts.end(), std::greater<>());
    std::vector<double> expected(kRanks);
    for (std::size_t k = 0; k < kRanks; ++k) {
        expected[k] = std::pow(static_cast<double>(k + 1), -GetParam());
    }
    const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
    double chi_square = 0;
    double cells = 0;
    for (std::size_t k = 0; k < kRanks; ++k) {
        const double wanted = expected[k] / total * kDraws;
        if (wanted >= 20) {
            chi_square += (counts[k] - wanted) * (counts[k] - wanted) / wanted;
            cells += 1;
        }
    }
    const double term = 2 / (9 * cells);
    EXPECT_LT(chi_square, cells * std::pow(1 - term + 3.72 * std::sqrt(term), 3));
}

INSTANTIATE_TEST_SUITE_P(Exponents, ZipfRowsTest, testing::Values(0.0, 0.6, 1.0, 1.2, 2.5));

TEST(ZipfRowsTest, AreTheSameForTheSameBatch) {
    const ZipfRows rows(1000, 0.6);
    std::vector<std::uint64_t> one(100);
    std::vector<std::uint64_t> same(100);
    std::vector<std::uint64_t> other(100);
    rows.fill(one, 5);
    rows.fill(same, 5);
    rows.fill(other, 6);
    EXPECT_EQ(one, same);
    EXPECT_NE(one, other);
    std::vector<std::uint64_t> single(10);
    ZipfRows(1, 0.6).fill(single, 0);
    EXPECT_THAT(single, testing::Each(0U));
}

TEST(ZipfRowsTest, RefuseWhatIsNoLaw) {
    const auto refused = [](std::uint64_t rows, double exponent) {
        return std::string(error_of([&] { ZipfRows(rows, exponent); }).what());
    };
    EXPECT_THAT(refused(0, 1), HasSubstr("rows: expected 1 to"));
    EXPECT_THAT(refused(5, -1), HasSubstr("exponent: expected 0 to 8, got -1"));
    EXPECT_THAT(refused(5, std::numeric_limits<double>::quiet_NaN()), HasSubstr("exponent"));
}

}  // namespace
}  // namespace penstock::graph
