// SPDX-License-Identifier: Apache-2.0
// Graphs from memory, edges and files; what is no graph is refused, and never read out of range.
#include "support/temp_folder.hpp"
#include "support/text_files.hpp"

#include <penstock/graph.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace penstock::graph {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename Number>
std::string npy(const std::string& dtype, const std::vector<Number>& values,
                const std::string& shape = {}) {
    std::string text = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (" +
                       (shape.empty() ? std::to_string(values.size()) + "," : shape) + "), }";
    text += std::string(117 - text.size(), ' ') + "\n";
    std::string file("\x93NUMPY\x01\x00\x76\x00", 10);
    file += text;
    file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Number));
    return file;
}

std::vector<std::uint64_t> sources_of(const Graph& graph, std::uint64_t node) {
    std::vector<std::uint64_t> out;
    const Graph::Range range = graph.edges_to(node);
    for (std::uint64_t place = range.begin; place < range.end; ++place) {
        out.push_back(graph.source_of(place));
    }
    return out;
}

TEST(GraphTest, HasTheEdgesOfItsArrays) {
    const std::vector<std::int64_t> indptr{0, 2, 2, 5};
    const std::vector<std::int32_t> indices{1, 2, 0, 0, 1};
    const Graph graph{IndexArray(indptr), IndexArray(indices)};
    EXPECT_EQ(graph.sources(), 3U);
    EXPECT_EQ(graph.destinations(), 3U);
    EXPECT_EQ(graph.edges(), 5U);
    EXPECT_FALSE(graph.mapped());
    EXPECT_THAT(sources_of(graph, 0), ElementsAre(1, 2));
    EXPECT_THAT(sources_of(graph, 1), ElementsAre());
    EXPECT_THAT(sources_of(graph, 2), ElementsAre(0, 0, 1));
    EXPECT_EQ(graph.degree(2), 3U);
    EXPECT_EQ(graph.edge_id(4), 4U);
    EXPECT_THAT(error_of([&] { static_cast<void>(graph.degree(3)); }).what(),
                HasSubstr("3 is no node; there are 3"));
}

TEST(GraphTest, OfNoNodesAndOfNoEdges) {
    const std::vector<std::uint64_t> none{0};
    EXPECT_EQ(Graph(IndexArray(none), IndexArray()).destinations(), 0U);
    const std::vector<std::uint32_t> two{0, 0, 0};
    const Graph graph(IndexArray(two), IndexArray(), 7);
    EXPECT_EQ(graph.sources(), 7U);
    EXPECT_EQ(graph.degree(1), 0U);
    const Graph from_none = Graph::from_edges({}, {}, 0, 0);
    EXPECT_EQ(from_none.destinations(), 0U);
    EXPECT_EQ(Graph::from_edges({}, {}, 2, 3).degree(2), 0U);
}

struct Refusal {
    std::string name;
    std::vector<std::int64_t> indptr;
    std::vector<std::int64_t> indices;
    std::vector<std::int64_t> edge_ids;
    std::string message;
};

class RefusedGraphs : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedGraphs, AreRefusedWithTheReason) {
    const Refusal& bad = GetParam();
    const Error error = error_of([&] {
        static_cast<void>(
            Graph(IndexArray(bad.indptr), IndexArray(bad.indices), {}, IndexArray(bad.edge_ids)));
    });
    EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedGraphs,
    testing::Values(
        Refusal{"Empty", {}, {}, {}, "one element more than there are nodes, got none"},
        Refusal{"Start", {1, 2}, {0, 0}, {}, "indptr begins with 1 and ends with 2: expected 0"},
        Refusal{"End", {0, 3}, {0, 0}, {}, "ends with 3: expected 0 and the number of edges, 2"},
        Refusal{"Falls", {0, 2, 1, 2}, {0, 0}, {}, "indptr[1] is 2, and indptr[2] is 1"},
        Refusal{"Beyond", {0, 9, 2}, {0, 0}, {}, "indptr[0] is 0, and indptr[1] is 9"},
        Refusal{"Negative", {0, -4, 2}, {0, 0}, {}, "indptr[1] is -4"},
        Refusal{"NoNode", {0, 1, 2}, {0, 2}, {}, "indices[1] is 2, which is no node: there are 2"},
        Refusal{"BelowZero", {0, 1, 2}, {0, -1}, {}, "indices[1] is -1, which is no node"},
        Refusal{"Ids", {0, 1, 2}, {0, 1}, {5}, "edge_ids: expected 2, one for each edge, got 1"}),
    [](const auto& tested) { return tested.param.name; });

TEST(GraphTest, NegativeNumbersOf32BitsAreNoNodes) {
    const std::vector<std::int32_t> indptr{0, 1};
    const std::vector<std::int32_t> indices{-1};
    const std::uint64_t many = std::uint64_t{1} << 40U;
    EXPECT_THAT(error_of([&] {
                    static_cast<void>(Graph(IndexArray(indptr), IndexArray(indices), many));
                }).what(),
                HasSubstr("indices[0] is -1"));
}

TEST(GraphTest, OtherTypesAreRefused) {
    const std::vector<std::int64_t> indptr{0, 0};
    const IndexArray floats(indptr.data(), 2, ElementType::kF64);
    EXPECT_THAT(error_of([&] { static_cast<void>(Graph(floats, IndexArray())); }).what(),
                HasSubstr("indptr: expected I32, U32, I64 or U64, got F64"));
    EXPECT_THAT(
        error_of([&] { static_cast<void>(Graph::from_edges(floats, floats, 1, 1)); }).what(),
        HasSubstr("expected I32, U32, I64 or U64"));
}

TEST(GraphTest, MemoryThatChangesIsNeverReadOutOfRange) {
    std::vector<std::int64_t> indptr{0, 1, 2};
    std::vector<std::int64_t> indices{0, 1};
    const Graph graph{IndexArray(indptr), IndexArray(indices)};
    indptr[1] = 1'000'000;
    EXPECT_EQ(error_of([&] { static_cast<void>(graph.degree(0)); }).reason(), ErrorCode::kDamaged);
    EXPECT_EQ(error_of([&] { static_cast<void>(graph.degree(1)); }).reason(), ErrorCode::kDamaged);
    indices[1] = -7;
    EXPECT_EQ(error_of([&] { static_cast<void>(graph.source_of(1)); }).reason(),
              ErrorCode::kDamaged);
    EXPECT_EQ(error_of([&] { static_cast<void>(graph.source_of(2)); }).reason(),
              ErrorCode::kDamaged);
}

TEST(GraphTest, FromEdgesKeepsEachEdgeAndItsNumber) {
    std::mt19937_64 random(3);
    for (int round = 0; round < 50; ++round) {
        const std::uint64_t sources = 1 + random() % 20;
        const std::uint64_t destinations = 1 + random() % 20;
        const std::uint64_t edges = random() % 100;
        std::vector<std::int64_t> from;
        std::vector<std::uint32_t> to;
        std::multimap<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> expected;
        for (std::uint64_t i = 0; i < edges; ++i) {
            from.push_back(static_cast<std::int64_t>(random() % sources));
            to.push_back(static_cast<std::uint32_t>(random() % destinations));
            expected.emplace(to.back(), std::pair{static_cast<std::uint64_t>(from.back()), i});
        }
        const Graph graph =
            Graph::from_edges(IndexArray(from), IndexArray(to), sources, destinations);
        decltype(expected) found;
        for (std::uint64_t node = 0; node < destinations; ++node) {
            const Graph::Range range = graph.edges_to(node);
            for (std::uint64_t place = range.begin; place < range.end; ++place) {
                found.emplace(node, std::pair{graph.source_of(place), graph.edge_id(place)});
            }
        }
        EXPECT_EQ(found, expected);  // in order: both are stable
    }
}

TEST(GraphTest, FromEdgesRefusesNodesThatAreNotThere) {
    const std::vector<std::int64_t> ends{0, 5};
    const std::vector<std::int64_t> one{0};
    EXPECT_THAT(error_of([&] {
                    static_cast<void>(Graph::from_edges(IndexArray(ends), IndexArray(ends), 5, 6));
                }).what(),
                HasSubstr("from[1] is 5, which is no node: there are 5"));
    EXPECT_THAT(error_of([&] {
                    static_cast<void>(Graph::from_edges(IndexArray(ends), IndexArray(ends), 6, 5));
                }).what(),
                HasSubstr("to[1] is 5"));
    EXPECT_THAT(error_of([&] {
                    static_cast<void>(Graph::from_edges(IndexArray(ends), IndexArray(one), 6, 6));
                }).what(),
                HasSubstr("2 begin and 1 end"));
}

class GraphFilesTest : public testing::TestWithParam<bool> {
protected:
    Graph open(GraphFiles files) {
        files.mapped = GetParam();
        return Graph::open(engine_, files);
    }
    std::string write(const std::string& name, const std::string& bytes) {
        test::write_text(folder_ / name, bytes);
        return folder_ / name;
    }

    support::TempFolder folder_;
    Engine engine_;
    std::vector<std::int64_t> indptr_{0, 2, 2, 5};
    std::vector<std::int32_t> indices_{1, 2, 0, 0, 1};
};

INSTANTIATE_TEST_SUITE_P(Both, GraphFilesTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Mapped" : "Read"; });

TEST_P(GraphFilesTest, NpyFiles) {
    const std::vector<std::uint64_t> ids{9, 8, 7, 6, 5};
    const Graph graph = open({.indptr = write("p.npy", npy("<i8", indptr_)),
                              .indices = write("i.npy", npy("<i4", indices_)),
                              .edge_ids = write("e.npy", npy("<u8", ids))});
    EXPECT_EQ(graph.mapped(), GetParam());
    EXPECT_THAT(sources_of(graph, 2), ElementsAre(0, 0, 1));
    EXPECT_EQ(graph.edge_id(0), 9U);
    EXPECT_EQ(Graph(graph).edges(), 5U);
}

TEST_P(GraphFilesTest, RawFiles) {
    const std::vector<std::int32_t> indptr(indptr_.begin(), indptr_.end());
    const auto bytes = [](const std::vector<std::int32_t>& values) {
        return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    };
    const std::string pointers = write("p", bytes(indptr));
    const std::string indices = write("i", bytes(indices_));
    const Graph graph =
        open({.indptr = pointers, .indices = indices, .type = ElementType::kI32, .sources = 3});
    EXPECT_THAT(sources_of(graph, 0), ElementsAre(1, 2));
    EXPECT_THAT(
        error_of([&] {
            open({.indptr = pointers, .indices = indices, .type = ElementType::kI32, .sources = 2});
        }).what(),
        HasSubstr("indices[1] is 2, which is no node: there are 2"));
    const Error odd = error_of([&] {
        open({.indptr = write("odd", bytes(indptr) + "x"),
              .indices = indices,
              .type = ElementType::kI32});
    });
    EXPECT_EQ(odd.reason(), ErrorCode::kDamaged);
    EXPECT_THAT(odd.what(), HasSubstr("it was cut, or its dtype is another"));
    EXPECT_EQ(error_of([&] {
                  open({.indptr = pointers, .indices = indices, .type = ElementType::kF32});
              }).reason(),
              ErrorCode::kInvalidArgument);
}

TEST_P(GraphFilesTest, FilesThatAreNoGraphAreRefused) {
    const std::string pointers = write("p.npy", npy("<i8", indptr_));
    const std::string indices = write("i.npy", npy("<i4", indices_));
    const auto refused = [&](const std::string& bytes, const std::string& message) {
        const Error error =
            error_of([&] { open({.indptr = pointers, .indices = write("bad.npy", bytes)}); });
        EXPECT_THAT(error.reason(),
                    testing::AnyOf(ErrorCode::kDamaged, ErrorCode::kInvalidArgument));
        EXPECT_THAT(error.what(), HasSubstr(message));
        EXPECT_THAT(error.what(), HasSubstr(folder_.path()));
    };
    const std::string whole = npy("<i4", indices_);
    refused(whole.substr(0, whole.size() - 1), "bytes");
    refused(npy("<f4", std::vector<float>(5)), "got dtype <f4 and shape [5]");
    refused(npy("<i4", std::vector<std::int32_t>(6), "2, 3"), "shape [2, 3]");
    refused(npy("<i4", std::vector<std::int32_t>{1, 2, 0, 0, 3}), "indices[4] is 3");
    refused(npy("<i4", std::vector<std::int32_t>{1, 2, 0, 0}), "the number of edges, 4");
    refused(npy("<i4", std::vector<std::int32_t>(4), "4611686018427387903,"), "");
    EXPECT_EQ(error_of([&] { open({.indptr = folder_ / "none", .indices = indices}); }).reason(),
              ErrorCode::kSystem);
    EXPECT_NO_THROW(open({.indptr = pointers, .indices = indices}));
}

// Each byte of the header and of the arrays, changed: a graph whose every read is in range, or an
// error.
TEST_P(GraphFilesTest, ChangedBytesAreHarmless) {
    const std::string pointers = npy("<i8", indptr_);
    const std::string indices = write("i.npy", npy("<i4", indices_));
    for (std::size_t at = 0; at < pointers.size(); at += at < 12 ? 1 : 3) {
        for (const bool check : {true, false}) {
            std::string changed = pointers;
            changed[at] = static_cast<char>(changed[at] ^ 0x41);
            const std::string path = write("changed.npy", changed);
            try {
                const Graph graph = open({.indptr = path, .indices = indices, .check = check});
                for (std::uint64_t node = 0; node < graph.destinations(); ++node) {
                    for (const std::uint64_t source : sources_of(graph, node)) {
                        EXPECT_LT(source, graph.sources());
                    }
                }
            } catch (const Error& error) {
                EXPECT_NE(error.reason(), ErrorCode::kOutOfMemory);
            }
        }
    }
}

TEST_P(GraphFilesTest, OutlivesItsFilesAndEngine) {
    const std::string pointers = write("p.npy", npy("<i8", indptr_));
    const std::string indices = write("i.npy", npy("<i4", indices_));
    const Graph graph = [&] {
        Engine engine;
        return Graph::open(engine, {.indptr = pointers, .indices = indices, .mapped = GetParam()});
    }();
    ASSERT_EQ(std::remove(pointers.c_str()), 0);
    ASSERT_EQ(std::remove(indices.c_str()), 0);
    EXPECT_THAT(sources_of(graph, 2), ElementsAre(0, 0, 1));
}

}  // namespace
}  // namespace penstock::graph
