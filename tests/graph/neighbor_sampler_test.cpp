// SPDX-License-Identifier: Apache-2.0
// Sampled neighbourhoods: every edge exists, none comes twice without replacement, choices are
// uniform, and a seed gives the same sample whatever the number of threads.
#include "graph/picks.hpp"
#include "support/text_files.hpp"

#include <penstock/graph.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

namespace penstock::graph {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

bool same(const Sample& a, const Sample& b) {
    const auto nodes = [](const SampledNodes& x) { return std::tie(x.ids, x.trees, x.per_hop); };
    const auto edges = [](const SampledEdges& x) {
        return std::tie(x.from, x.to, x.ids, x.per_hop);
    };
    return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                      [&](const auto& x, const auto& y) { return nodes(x) == nodes(y); }) &&
           std::equal(a.edges.begin(), a.edges.end(), b.edges.begin(), b.edges.end(),
                      [&](const auto& x, const auto& y) { return edges(x) == edges(y); });
}

/// All that a sample of one type promises.
void check(const Graph& graph, const std::vector<std::int64_t>& fanouts,
           const SamplerOptions& options, const std::vector<std::uint64_t>& seeds,
           const Sample& sample) {
    ASSERT_EQ(sample.nodes.size(), 1U);
    ASSERT_EQ(sample.edges.size(), 1U);
    const SampledNodes& nodes = sample.nodes[0];
    const SampledEdges& edges = sample.edges[0];
    ASSERT_EQ(nodes.per_hop.size(), fanouts.size() + 1);
    ASSERT_EQ(edges.per_hop.size(), fanouts.size());
    ASSERT_EQ(std::accumulate(nodes.per_hop.begin(), nodes.per_hop.end(), std::uint64_t{0}),
              nodes.ids.size());
    ASSERT_EQ(std::accumulate(edges.per_hop.begin(), edges.per_hop.end(), std::uint64_t{0}),
              edges.ids.size());
    ASSERT_EQ(edges.from.size(), edges.ids.size());
    ASSERT_EQ(edges.to.size(), edges.ids.size());
    ASSERT_EQ(nodes.trees.size(), options.disjoint ? nodes.ids.size() : 0U);
    ASSERT_TRUE(std::equal(seeds.begin(), seeds.end(), nodes.ids.begin()));
    ASSERT_EQ(nodes.per_hop[0], seeds.size());
    // But for the seeds, a node is there once (a tree).
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    for (std::size_t i = 0; i < nodes.ids.size(); ++i) {
        const std::uint64_t tree = options.disjoint ? nodes.trees[i] : 0;
        const bool is_new = seen.emplace(tree, nodes.ids[i]).second;
        ASSERT_TRUE(is_new || i < seeds.size());
    }
    // A hop's edges end at what the hop before found, and begin at nodes known by then.
    std::uint64_t edge = 0;
    std::uint64_t first = 0;
    std::uint64_t last = seeds.size();
    for (std::size_t hop = 0; hop < fanouts.size(); ++hop) {
        std::map<std::uint64_t, std::multiset<std::uint64_t>> of_node;
        for (std::uint64_t i = 0; i < edges.per_hop[hop]; ++i, ++edge) {
            const std::uint64_t to = edges.to[edge];
            ASSERT_GE(to, first);
            ASSERT_LT(to, last);
            ASSERT_LT(edges.from[edge], last + nodes.per_hop[hop + 1]);
            const Graph::Range range = graph.edges_to(nodes.ids[to]);
            ASSERT_GE(edges.ids[edge], range.begin);
            ASSERT_LT(edges.ids[edge], range.end);
            ASSERT_EQ(graph.source_of(edges.ids[edge]), nodes.ids[edges.from[edge]]);
            if (options.disjoint) {
                ASSERT_EQ(nodes.trees[to], nodes.trees[edges.from[edge]]);
            }
            of_node[to].insert(edges.ids[edge]);
        }
        for (std::uint64_t to = first; to < last; ++to) {
            const std::multiset<std::uint64_t>& chosen = of_node[to];
            ASSERT_EQ(chosen.size(),
                      pick_count(graph.degree(nodes.ids[to]), fanouts[hop], options.replace));
            if (!options.replace) {
                ASSERT_EQ(std::set<std::uint64_t>(chosen.begin(), chosen.end()).size(),
                          chosen.size());
            }
        }
        first = last;
        last += nodes.per_hop[hop + 1];
    }
}

TEST(NeighborSamplerTest, SamplesAreOfTheGraph) {
    const Graph graph = rmat_graph({.scale = 10, .edges_per_node = 8, .seed = 2});
    const std::vector<std::vector<std::int64_t>> fanouts{{10, 5, 5}, {-1}, {3, -1, 0, 2},
                                                         {0},        {},   {40, 100}};
    std::mt19937_64 random(1);
    for (const auto& fanout : fanouts) {
        for (const bool replace : {false, true}) {
            for (const bool disjoint : {false, true}) {
                const SamplerOptions options{.replace = replace, .disjoint = disjoint, .seed = 5};
                const NeighborSampler sampler(graph, fanout, options);
                for (const std::size_t count : {0U, 1U, 3U, 60U}) {
                    std::vector<std::uint64_t> seeds(count);
                    std::generate(seeds.begin(), seeds.end(), [&] { return random() % 1024; });
                    check(graph, fanout, options, seeds, sampler.sample(seeds, count));
                }
            }
        }
    }
}

TEST(NeighborSamplerTest, AllNeighboursOfAKnownGraph) {
    const std::vector<std::int64_t> indptr{0, 2, 3, 3, 4};
    const std::vector<std::int64_t> indices{1, 2, 3, 0};
    const NeighborSampler sampler(Graph(IndexArray(indptr), IndexArray(indices)), {-1, -1});
    const std::vector<std::uint64_t> seeds{0};
    const Sample sample = sampler.sample(seeds);
    EXPECT_THAT(sample.nodes[0].ids, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(sample.nodes[0].per_hop, ElementsAre(1, 2, 1));
    EXPECT_THAT(sample.edges[0].from, ElementsAre(1, 2, 3));
    EXPECT_THAT(sample.edges[0].to, ElementsAre(0, 0, 1));
    EXPECT_THAT(sample.edges[0].ids, ElementsAre(0, 1, 2));
    EXPECT_THAT(sample.edges[0].per_hop, ElementsAre(2, 1));
}

TEST(NeighborSamplerTest, EqualSeedsKeepTheirPlaces) {
    const std::vector<std::int64_t> indptr{0, 1, 2};
    const std::vector<std::int64_t> indices{1, 0};
    const NeighborSampler sampler(Graph(IndexArray(indptr), IndexArray(indices)), {-1});
    const std::vector<std::uint64_t> seeds{1, 1};
    const Sample sample = sampler.sample(seeds);
    EXPECT_THAT(sample.nodes[0].ids, ElementsAre(1, 1, 0));
    EXPECT_THAT(sample.edges[0].to, ElementsAre(0, 1));
    EXPECT_THAT(sample.edges[0].from, ElementsAre(2, 2));
}

TEST(NeighborSamplerTest, ASeedGivesTheSameSampleWhateverTheThreads) {
    const Graph graph = rmat_graph({.scale = 12, .seed = 4});
    std::vector<std::uint64_t> seeds(900);
    std::iota(seeds.begin(), seeds.end(), 100U);
    const std::vector<std::int64_t> fanouts{10, 5, 5};
    const NeighborSampler one(graph, fanouts, {.seed = 9});
    const Sample expected = one.sample(seeds, 3);
    for (const std::uint32_t threads : {1U, 2U, 3U, 8U}) {
        const NeighborSampler sampler(graph, fanouts, {.seed = 9, .threads = threads});
        EXPECT_TRUE(same(sampler.sample(seeds, 3), expected));
    }
    EXPECT_FALSE(same(one.sample(seeds, 4), expected));
    EXPECT_FALSE(same(NeighborSampler(graph, fanouts, {.seed = 10}).sample(seeds, 3), expected));
    // Several threads sample at once.
    std::vector<std::jthread> threads;
    std::vector<Sample> found(4);
    for (Sample& sample : found) {
        threads.emplace_back([&one, &seeds, &sample] { sample = one.sample(seeds, 3); });
    }
    threads.clear();
    for (const Sample& sample : found) {
        EXPECT_TRUE(same(sample, expected));
    }
}

// Chi-square stays below this in 99.99 % of cases (Wilson and Hilferty's approximation).
double chi_square_limit(double freedom) {
    const double term = 2 / (9 * freedom);
    return freedom * std::pow(1 - term + 3.72 * std::sqrt(term), 3);
}

class UniformTest : public testing::TestWithParam<std::tuple<std::uint64_t, std::int64_t, bool>> {};

TEST_P(UniformTest, EachEdgeIsAsLikely) {
    const auto [degree, fanout, replace] = GetParam();
    const std::vector<std::uint64_t> indptr{0, degree};
    const std::vector<std::uint32_t> indices(degree, 0);
    const Graph graph{IndexArray(indptr), IndexArray(indices)};
    const NeighborSampler sampler(graph, {fanout}, {.replace = replace, .seed = 1});
    constexpr int kSamples = 4000;
    std::vector<double> counts(degree);
    const std::vector<std::uint64_t> seeds{0};
    for (std::uint64_t batch = 0; batch < kSamples; ++batch) {
        const Sample sample = sampler.sample(seeds, batch);
        for (const std::uint64_t id : sample.edges[0].ids) {
            counts[id] += 1;
        }
    }
    const double expected =
        static_cast<double>(kSamples) * static_cast<double>(fanout) / static_cast<double>(degree);
    double chi_square = 0;
    for (const double count : counts) {
        chi_square += (count - expected) * (count - expected) / expected;
    }
    // Without replacement counts vary less, so this is a bound there too, if a wide one.
    EXPECT_LT(chi_square, chi_square_limit(static_cast<double>(degree - 1)));
}

INSTANTIATE_TEST_SUITE_P(Cases, UniformTest,
                         testing::Values(std::tuple{7, 3, false}, std::tuple{7, 6, false},
                                         std::tuple{100, 10, false}, std::tuple{100, 40, false},
                                         std::tuple{7, 3, true}, std::tuple{3, 10, true},
                                         std::tuple{100, 40, true}));

// Not only each edge but each pair of edges.
TEST(NeighborSamplerTest, PairsAreAsLikelyToo) {
    Picks picks;
    std::map<std::pair<std::uint64_t, std::uint64_t>, double> counts;
    constexpr int kSamples = 20'000;
    for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
        std::vector<std::uint64_t> chosen;
        picks.choose(8, 2, false, RandomStream(sample),
                     [&chosen](std::uint64_t pick) { chosen.push_back(pick); });
        ASSERT_EQ(chosen.size(), 2U);
        counts[std::minmax(chosen[0], chosen[1])] += 1;
    }
    EXPECT_EQ(counts.size(), 28U);
    double chi_square = 0;
    for (const auto& [pair, count] : counts) {
        chi_square += (count - kSamples / 28.0) * (count - kSamples / 28.0) / (kSamples / 28.0);
    }
    EXPECT_LT(chi_square, chi_square_limit(27));
}

struct Hetero {
    std::vector<std::int64_t> writes_ptr{0, 2, 3, 3};  // papers, by authors
    std::vector<std::int64_t> writes{0, 1, 1};
    std::vector<std::int64_t> cites_ptr{0, 1, 2, 2};  // papers, by papers
    std::vector<std::int64_t> cites{1, 2};
    std::vector<std::int64_t> written_ptr{0, 1, 3};  // authors, by papers
    std::vector<std::int64_t> written{0, 0, 1};

    [[nodiscard]] std::vector<SampledRelation> relations(std::vector<std::int64_t> fanouts) const {
        return {{Graph(IndexArray(writes_ptr), IndexArray(writes), 2), 1, 0, fanouts},
                {Graph(IndexArray(cites_ptr), IndexArray(cites)), 0, 0, fanouts},
                {Graph(IndexArray(written_ptr), IndexArray(written), 3), 0, 1, fanouts}};
    }
};

TEST(NeighborSamplerTest, SeveralTypesOfNodesAndEdges) {
    const Hetero graphs;
    const NeighborSampler sampler({3, 2}, graphs.relations({-1, -1}));
    const std::vector<std::uint64_t> papers{0};
    const std::vector<SeedNodes> seeds{{0, papers}};
    const Sample sample = sampler.sample(seeds);
    EXPECT_THAT(sample.nodes[0].ids, ElementsAre(0, 1, 2));
    EXPECT_THAT(sample.nodes[0].per_hop, ElementsAre(1, 1, 1));
    EXPECT_THAT(sample.nodes[1].ids, ElementsAre(0, 1));
    EXPECT_THAT(sample.nodes[1].per_hop, ElementsAre(0, 2, 0));
    EXPECT_THAT(sample.edges[0].from, ElementsAre(0, 1, 1));  // authors of 0, then of 1
    EXPECT_THAT(sample.edges[0].to, ElementsAre(0, 0, 1));
    EXPECT_THAT(sample.edges[0].per_hop, ElementsAre(2, 1));
    EXPECT_THAT(sample.edges[1].from, ElementsAre(1, 2));  // 0 is cited by 1, that by 2
    EXPECT_THAT(sample.edges[1].to, ElementsAre(0, 1));
    EXPECT_THAT(sample.edges[2].from, ElementsAre(0, 0, 1));  // papers of the authors found first
    EXPECT_THAT(sample.edges[2].to, ElementsAre(0, 1, 1));
    EXPECT_THAT(sample.edges[2].per_hop, ElementsAre(0, 3));
}

TEST(NeighborSamplerTest, DisjointTreesAreNumberedThroughAllTypes) {
    const Hetero graphs;
    const NeighborSampler sampler({3, 2}, graphs.relations({1}), {.disjoint = true});
    const std::vector<std::uint64_t> papers{2, 1};
    const std::vector<std::uint64_t> authors{0};
    const std::vector<SeedNodes> seeds{{0, papers}, {1, authors}};
    const Sample sample = sampler.sample(seeds);
    EXPECT_THAT(sample.nodes[0].ids, ElementsAre(2, 1, 2, 0));
    EXPECT_THAT(sample.nodes[0].trees, ElementsAre(0, 1, 1, 2));
    EXPECT_THAT(sample.nodes[1].ids, ElementsAre(0, 1));
    EXPECT_THAT(sample.nodes[1].trees, ElementsAre(2, 1));
}

TEST(NeighborSamplerTest, RefusesWhatDoesNotFit) {
    const Hetero graphs;
    const auto refused = [](std::vector<std::uint64_t> nodes,
                            std::vector<SampledRelation> relations,
                            const SamplerOptions& options = {}) {
        return std::string(error_of([&] {
                               NeighborSampler(std::move(nodes), std::move(relations), options);
                           }).what());
    };
    EXPECT_THAT(refused({3}, graphs.relations({1})), HasSubstr("relations[0]: from type 1 to 0"));
    EXPECT_THAT(refused({3, 3}, graphs.relations({1})),
                HasSubstr("relations[0]: its graph is of 2 nodes to 3; expected 3 and 3"));
    EXPECT_THAT(refused({3, 2}, graphs.relations({1, -2})),
                HasSubstr("fanouts[1] of relations[0]: expected 0 to 4294967296, or -1 for all"));
    std::vector<SampledRelation> uneven = graphs.relations({1, 1});
    uneven[2].fanouts = {1};
    EXPECT_THAT(refused({3, 2}, uneven), HasSubstr("relations[2]: 1 fan-outs, and relations[0]"));
    EXPECT_THAT(refused({3, 2}, graphs.relations({1}), {.threads = 0}), HasSubstr("threads"));
    EXPECT_THAT(refused({3, 2}, graphs.relations({1 << 30}), {.replace = true}),
                HasSubstr("fanouts[0]"));
    const NeighborSampler sampler({3, 2}, graphs.relations({1}));
    const std::vector<std::uint64_t> none{0, 3};
    EXPECT_THAT(error_of([&] { static_cast<void>(sampler.sample(none)); }).what(),
                HasSubstr("seeds[1]: 3 is no node; there are 3, from 0 on"));
    const std::vector<SeedNodes> other{{2, none}};
    EXPECT_THAT(error_of([&] { static_cast<void>(sampler.sample(other)); }).what(),
                HasSubstr("2 is no type of nodes"));
}

TEST(NeighborSamplerTest, AGraphThatChangesIsAnErrorInEveryThread) {
    std::vector<std::int64_t> indptr(20'001);
    std::iota(indptr.begin(), indptr.end(), 0);
    std::vector<std::int64_t> indices(20'000, 1);
    const NeighborSampler sampler(Graph(IndexArray(indptr), IndexArray(indices)), {2, 2},
                                  {.threads = 4});
    std::vector<std::uint64_t> seeds(20'000);
    std::iota(seeds.begin(), seeds.end(), 0U);
    EXPECT_NO_THROW(static_cast<void>(sampler.sample(seeds)));
    indices[17'000] = 20'000;
    EXPECT_EQ(error_of([&] { static_cast<void>(sampler.sample(seeds)); }).reason(),
              ErrorCode::kDamaged);
    indices[17'000] = 0;
    indptr[15'000] = -1;
    EXPECT_EQ(error_of([&] { static_cast<void>(sampler.sample(seeds)); }).reason(),
              ErrorCode::kDamaged);
}

TEST(NeighborSamplerTest, WithoutRelationsOrTypes) {
    const NeighborSampler sampler({5}, {});
    const std::vector<std::uint64_t> seeds{4, 2};
    EXPECT_THAT(sampler.sample(seeds).nodes[0].ids, ElementsAre(4, 2));
    EXPECT_EQ(sampler.hops(), 0U);
    const NeighborSampler of_nothing(std::vector<std::uint64_t>{}, {});
    EXPECT_TRUE(of_nothing.sample(std::span<const SeedNodes>()).nodes.empty());
}

}  // namespace
}  // namespace penstock::graph
