// SPDX-License-Identifier: Apache-2.0
// The simulator of caches against caches that are written out here, and traces in files.
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>
#include <penstock/features.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace penstock {
namespace {

using Ids = std::vector<std::uint64_t>;

RowTrace random_trace(std::uint64_t seed, std::size_t batches, std::size_t rows,
                      std::uint64_t below) {
    std::mt19937_64 random(seed);
    RowTrace trace;
    for (std::size_t i = 0; i < batches; ++i) {
        Ids batch(rows == 0 ? 0 : random() % rows + 1);
        for (std::uint64_t& id : batch) {
            id = std::min({random() % below, random() % below, random() % below}) * 1000;
        }
        trace.add(batch);
    }
    return trace;
}

std::vector<Ids> distinct(const RowTrace& trace) {
    std::vector<Ids> out;
    for (std::uint64_t i = 0; i < trace.ends.size(); ++i) {
        Ids ids;
        for (const std::uint64_t id : trace.batch(i)) {
            if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
                ids.push_back(id);
            }
        }
        out.push_back(ids);
    }
    return out;
}

// The fewest rows that any cache could read, by trying every choice: tiny traces alone.
std::uint64_t fewest_reads(const std::vector<Ids>& batches, std::size_t slots) {
    std::map<std::set<std::uint64_t>, std::uint64_t> best{{{}, 0}};
    for (const Ids& batch : batches) {
        std::map<std::set<std::uint64_t>, std::uint64_t> next;
        for (const auto& [held, reads] : best) {
            std::uint64_t more = reads;
            std::set<std::uint64_t> known = held;
            for (const std::uint64_t id : batch) {
                more += known.insert(id).second ? 1U : 0U;
            }
            const Ids all(known.begin(), known.end());
            for (std::uint64_t kept = 0; kept < std::uint64_t{1} << all.size(); ++kept) {
                std::set<std::uint64_t> those;
                for (std::size_t i = 0; i < all.size(); ++i) {
                    if ((kept >> i & 1) != 0) {
                        those.insert(all[i]);
                    }
                }
                if (those.size() <= slots) {
                    const auto [found, is_new] = next.emplace(those, more);
                    found->second = std::min(found->second, more);
                }
            }
        }
        best = std::move(next);
    }
    std::uint64_t fewest = UINT64_MAX;
    for (const auto& [held, reads] : best) {
        fewest = std::min(fewest, reads);
    }
    return fewest;
}

TEST(RowSimulator, BeladyIsTheFewestReadsThereCanBe) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const RowTrace trace = random_trace(seed, 7, 3, 7);
        const RowSimulator simulator(trace);
        for (const std::uint64_t slots : {0, 1, 2, 4}) {
            EXPECT_EQ(simulator.run("belady", {.slots = slots}).rows_read,
                      fewest_reads(distinct(trace), slots))
                << seed << " " << slots;
        }
    }
}

TEST(RowSimulator, FifoAndLruAreThoseOfAList) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const RowTrace trace = random_trace(seed, 30, 40, 200);
        const std::uint64_t slots = 1 + seed * 5;
        for (const bool lru : {false, true}) {
            std::deque<std::uint64_t> held;
            std::uint64_t reads = 0;
            for (const Ids& batch : distinct(trace)) {
                Ids missed;
                for (const std::uint64_t id : batch) {
                    const auto found = std::find(held.begin(), held.end(), id);
                    if (found == held.end()) {
                        missed.push_back(id);
                    } else if (lru) {
                        held.erase(found);
                        held.push_back(id);
                    }
                }
                for (const std::uint64_t id : missed) {
                    held.push_back(id);
                    if (held.size() > slots) {
                        held.pop_front();
                    }
                }
                reads += missed.size();
            }
            const RowSimulator simulator(trace);
            EXPECT_EQ(simulator.run(lru ? "lru" : "fifo", {.slots = slots}).rows_read, reads);
        }
    }
}

// Every policy, over any trace.
TEST(RowSimulator, NoPolicyReadsLessThanBelady) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        const RowTrace trace = random_trace(seed, 40, 200, 2000);
        std::uint64_t wanted = 0;
        std::set<std::uint64_t> different;
        for (const Ids& batch : distinct(trace)) {
            wanted += batch.size();
            different.insert(batch.begin(), batch.end());
        }
        const RowSimulator simulator(trace);
        for (const std::uint64_t slots : {0, 1, 63, 64, 65, 300, 100'000}) {
            const std::uint64_t least = simulator.run("belady", {.slots = slots}).rows_read;
            for (const std::string_view policy : row_simulation_policies()) {
                SCOPED_TRACE(policy);
                const RowSimulation run = simulator.run(policy, {.slots = slots});
                EXPECT_EQ(run.rows, wanted);
                EXPECT_EQ(run.batches, 40U);
                EXPECT_GE(run.rows_read, least);
                EXPECT_LE(run.rows_read, wanted);
                if (slots == 100'000) {
                    EXPECT_EQ(run.rows_read, different.size());
                }
            }
        }
    }
}

TEST(RowSimulator, HintsAndWindowsSaveReads) {
    const RowTrace trace = random_trace(9, 100, 600, 4000);
    const RowSimulator simulator(trace);
    const auto reads = [&](std::string_view policy, std::uint32_t window) {
        return simulator.run(policy, {.slots = 800, .window = window}).rows_read;
    };
    EXPECT_LT(reads("window", 8), reads("window", 0));
    EXPECT_LT(reads("window", 30), reads("window", 2));
    EXPECT_LT(static_cast<double>(reads("window", 30)),
              1.1 * static_cast<double>(reads("belady", 0)));
    EXPECT_LT(reads("s3fifo", 0), reads("fifo", 0));
    // Sets of slots cost little.
    EXPECT_LT(static_cast<double>(reads("s3fifo", 0)),
              1.1 * static_cast<double>(reads("s3fifo_whole", 0)));
}

TEST(RowSimulator, HotRowsAreThereFromTheBeginning) {
    const RowTrace trace = random_trace(2, 20, 300, 3000);
    const std::vector<double> counts = batch_counts(trace, 3'000'000);
    const Ids hot = hottest_rows(counts, 200);
    const RowSimulator simulator(trace);
    for (const std::string_view policy : row_simulation_policies()) {
        SCOPED_TRACE(policy);
        const RowSimulation cold = simulator.run(policy, {.slots = 200});
        const RowSimulation warm = simulator.run(policy, {.slots = 200, .hot = hot});
        EXPECT_LT(warm.rows_read, cold.rows_read);
        EXPECT_EQ(cold.preloaded, 0U);
        EXPECT_GT(warm.preloaded, 190U);
    }
    const RowSimulation late = simulator.run("lru", {.slots = 200, .warm_up = 15});
    EXPECT_EQ(late.batches, 5U);
}

// The memory of a simulation is that of the trace's rows, whatever the number of slots.
TEST(RowSimulator, ACacheLargerThanTheTraceReadsEachRowOnce) {
    RowTrace trace;
    Ids ids(1000);
    std::iota(ids.begin(), ids.end(), 0);
    trace.add(ids);
    trace.add(ids);
    for (const std::string_view policy : row_simulation_policies()) {
        EXPECT_EQ(RowSimulator(trace).run(policy, {.slots = 1U << 30}).rows_read, 1000U) << policy;
    }
}

TEST(RowSimulator, RefusesWhatItCannotRun) {
    RowTrace trace = random_trace(1, 3, 5, 10);
    const RowSimulator simulator(trace);
    EXPECT_THROW(static_cast<void>(simulator.run("blady", {})), Error);
    EXPECT_THROW(static_cast<void>(simulator.run("window", {.window = 31})), Error);
    EXPECT_THROW(static_cast<void>(simulator.run("lru", {.slots = std::uint64_t{1} << 31})), Error);
    EXPECT_EQ(RowSimulator(RowTrace()).run("window", {.slots = 5}).hit_rate(), 0);
    trace.ends.back() += 1;
    EXPECT_THROW(RowSimulator{trace}, Error);
    trace.ends = {9, 3, trace.ids.size()};
    EXPECT_THROW(RowSimulator{trace}, Error);
}

// ---- traces in files

class RowTraceFile : public testing::Test {
protected:
    std::string write(const std::string& bytes) {
        const std::string path = folder_.path() + "/trace";
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    static std::string words(const Ids& ids) {
        return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]};
    }
    static std::string npy(const std::string& dtype, const std::string& shape,
                           const std::string& data) {
        std::string header =
            "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
        header.resize(117, ' ');
        return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" + data;
    }
    RowTrace read(const std::string& bytes, std::uint64_t batch = 0) {
        return read_row_trace(engine_, write(bytes), batch);
    }
    void expect_refused(const std::string& bytes, const std::string& reason,
                        std::uint64_t batch = 0) {
        try {
            static_cast<void>(read(bytes, batch));
            ADD_FAILURE() << "read: " << reason;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), testing::HasSubstr(reason));
        }
    }

    support::TempFolder folder_;
    Engine engine_;
};

TEST_F(RowTraceFile, HasBatchesWithTheirNumberOfIds) {
    const RowTrace trace = read(words({2, 7, 9, 0, 1, 5}));
    EXPECT_EQ(trace.ids, (Ids{7, 9, 5}));
    EXPECT_EQ(trace.ends, (Ids{2, 2, 3}));
    EXPECT_TRUE(read("").ends.empty());
    expect_refused("1234567", "multiple of 8");
    expect_refused(words({1, 5, 3, 1}), "batch 1 has 3 ids, and 1 are left");
    expect_refused(words({UINT64_MAX}), "ids, and 0 are left");
    expect_refused(words({1, UINT64_MAX}), "expected 0 to 2^63 - 1");
}

TEST_F(RowTraceFile, IsANpyOfIntegers) {
    const std::string ids = words({4, 5, 6, 7, 8});
    const RowTrace flat = read(npy("<i8", "(5,)", ids), 2);
    EXPECT_EQ(flat.ids, (Ids{4, 5, 6, 7, 8}));
    EXPECT_EQ(flat.ends, (Ids{2, 4, 5}));
    const RowTrace rows = read(npy("<u8", "(2, 2)", words({1, 2, 3, 4})));
    EXPECT_EQ(rows.ends, (Ids{2, 4}));
    const std::vector<std::int32_t> narrow{1, 2, 3};
    const std::string bytes(reinterpret_cast<const char*>(narrow.data()), 12);
    EXPECT_EQ(read(npy("<i4", "(3,)", bytes), 3).ids, (Ids{1, 2, 3}));
    EXPECT_EQ(read(npy("<u4", "(3,)", bytes), 100).ends, (Ids{3}));
    expect_refused(npy("<i8", "(5,)", ids), "how many of its ids are a batch (--batch 1024)");
    expect_refused(npy("<f8", "(5,)", ids), "expected int32, int64, uint32 or uint64", 1);
    expect_refused(npy("<i8", "(1, 1, 5)", ids), "expected one dimension", 1);
    expect_refused(npy("<i8", "(1,)", words({UINT64_MAX})), "element 0 is -1", 1);
    expect_refused(npy("<u8", "(1,)", words({UINT64_MAX})), "expected rows from 0 to 2^63 - 1", 1);
    expect_refused(npy("<i8", "(100000000000000,)", ids), "it is cut short", 1);
}

// Every cut and every changed byte of a small file: refused, or read as another trace.
TEST_F(RowTraceFile, MayBeDamaged) {
    for (const std::string& whole :
         {words({2, 7, 9, 0, 1, 5}), npy("<i8", "(5,)", words({4, 5, 6, 7, 8}))}) {
        for (std::size_t i = 0; i < whole.size(); ++i) {
            for (const int change : {-1, 0x01, 0x80, 0xff}) {
                std::string bytes = change < 0 ? whole.substr(0, i) : whole;
                if (change >= 0) {
                    bytes[i] = static_cast<char>(bytes[i] ^ change);
                }
                try {
                    const RowTrace trace = read(bytes, 2);
                    EXPECT_LE(trace.ids.size(), whole.size() / 4);
                } catch (const Error&) {
                }
            }
        }
    }
}

// ---- hot rows

TEST(HotRows, AreCountedInAGraph) {
    // 0 -> 1, 0 -> 2, 1 -> 2, 3 -> 2
    const std::vector<std::int64_t> indptr{0, 0, 1, 4, 4};
    const std::vector<std::int64_t> indices{0, 0, 1, 3};
    const Graph graph{IndexArray(indptr), IndexArray(indices)};
    EXPECT_EQ(out_degrees(graph), (std::vector<double>{2, 1, 0, 1}));
    const std::vector<std::int64_t> fanouts{1, -1};
    const Ids seeds{2};
    const std::vector<double> visits =
        expected_visits(graph, fanouts, {.batch = 1, .seeds = seeds});
    // 2 for sure; each of its neighbours with 1/3; from 1 to 0 with 1/3 again.
    EXPECT_NEAR(visits[2], 1, 1e-12);
    EXPECT_NEAR(visits[0], 2.0 / 3, 1e-12);
    EXPECT_NEAR(visits[1], 1.0 / 3, 1e-12);
    EXPECT_NEAR(visits[3], 1.0 / 3, 1e-12);
    EXPECT_EQ(hottest_rows(visits, 3), (Ids{2, 0, 1}));
    EXPECT_EQ(hottest_rows(visits, 100).size(), 4U);
    EXPECT_EQ(hottest_rows(std::vector<double>{0, -1, 2}, 5), (Ids{2}));
    EXPECT_THROW(static_cast<void>(expected_visits(graph, std::vector<std::int64_t>{-2})), Error);
    const Ids wrong{4};
    EXPECT_THROW(static_cast<void>(expected_visits(graph, fanouts, {.seeds = wrong})), Error);
    RowTrace trace;
    trace.add(Ids{1, 1, 3});
    trace.add(Ids{1});
    EXPECT_EQ(batch_counts(trace, 4), (std::vector<double>{0, 2, 0, 1}));
    EXPECT_THROW(static_cast<void>(batch_counts(trace, 3)), Error);
}

// Each paper of a batch has two authors and a paper that it cites, of its own; each author works at
// one of two institutes. So no batch reaches a node in two ways, and what is expected is what is
// counted.
TEST(HotRows, AreExpectedInAGraphOfSeveralTypes) {
    enum : std::uint32_t { kPaper, kAuthor, kInstitute };
    constexpr std::uint64_t kSeeds = 4;
    const auto graph = [](const std::vector<std::int64_t>& from,
                          const std::vector<std::int64_t>& to, std::uint64_t sources,
                          std::uint64_t destinations) {
        return Graph::from_edges(IndexArray(from), IndexArray(to), sources, destinations);
    };
    const NeighborSampler sampler(
        {8, 9, 2},
        {{graph({0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}, 9, 8), kAuthor, kPaper, {1, 0}},
         {graph({4, 5, 6, 7}, {0, 1, 2, 3}, 8, 8), kPaper, kPaper, {-1, 3}},
         {graph({0, 0, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7}, 2, 9),
          kInstitute,
          kAuthor,
          {5, 2}}},
        {.seed = 3});
    const Ids papers{0, 1, 2, 3};
    const SeedNodes seeds{kPaper, papers};
    const auto visits = expected_visits(sampler, std::span(&seeds, 1), 1);
    constexpr std::uint64_t kBatches = 4000;
    std::vector<std::vector<double>> counted{std::vector<double>(8), std::vector<double>(9),
                                             std::vector<double>(2)};
    for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
        const Ids one{batch % kSeeds};
        const Sample sample = sampler.sample(one, batch);
        for (std::size_t type = 0; type < counted.size(); ++type) {
            for (const std::uint64_t node : sample.nodes[type].ids) {
                counted[type][node] += 1.0 / kBatches;
            }
        }
    }
    ASSERT_EQ(visits.size(), counted.size());
    for (std::size_t type = 0; type < counted.size(); ++type) {
        ASSERT_EQ(visits[type].size(), counted[type].size());
        for (std::size_t node = 0; node < counted[type].size(); ++node) {
            EXPECT_NEAR(visits[type][node], counted[type][node], 0.03) << type << ", " << node;
        }
    }
    EXPECT_DOUBLE_EQ(visits[kPaper][0], 0.25);
    EXPECT_DOUBLE_EQ(visits[kPaper][5], 0.25);
    EXPECT_DOUBLE_EQ(visits[kAuthor][1], 0.125);
    EXPECT_DOUBLE_EQ(visits[kAuthor][8], 0);
    EXPECT_DOUBLE_EQ(visits[kInstitute][1], 0.75);
    EXPECT_EQ(out_degrees(sampler),
              (std::vector<std::vector<double>>{
                  {0, 0, 0, 0, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 0}, {2, 6}}));
    // All nodes of all types, of which a batch has at most all; a node is expected once a hop.
    const auto all = expected_visits(sampler);
    EXPECT_DOUBLE_EQ(all[kInstitute][0], 1 + 1 + 1);
    EXPECT_DOUBLE_EQ(all[kPaper][0], 1);
    const SeedNodes none{kInstitute, {}};
    EXPECT_EQ(expected_visits(sampler, std::span(&none, 1))[kPaper], std::vector<double>(8));
    const Ids wrong{9};
    for (const SeedNodes& bad : {SeedNodes{kAuthor, wrong}, SeedNodes{3, papers}}) {
        EXPECT_THROW(static_cast<void>(expected_visits(sampler, std::span(&bad, 1))), Error);
    }
}

}  // namespace
}  // namespace penstock
