// SPDX-License-Identifier: Apache-2.0
// Jobs on the cache of rows: rows read over a trace, by the cache's own code; and what it needs.
#include "features.hpp"

#include "tier/cache/key_cache.hpp"

#include <penstock/features.hpp>
#include <penstock/graph.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kBatch = 1024;
constexpr std::array<std::int64_t, 3> kFanouts{10, 5, 5};
constexpr std::uint64_t kControlRows = std::uint64_t{1} << 18;

struct Traced {
    RowTrace trace;
    std::vector<std::uint64_t> hot;
};

/// Batches of seeds in random order, each seed once, and their neighbourhoods.
Traced sampled_trace(const Arguments& arguments, std::uint64_t slots_percent) {
    const std::uint64_t batches = arguments.number("batches", 150);
    const Graph graph =
        rmat_graph({.scale = static_cast<std::uint32_t>(arguments.number("scale", 21))});
    std::vector<std::uint64_t> seeds(graph.sources());
    if (batches * kBatch > seeds.size()) {
        throw std::runtime_error("the graph has too few nodes for so many batches");
    }
    std::iota(seeds.begin(), seeds.end(), 0);
    Random random;
    for (std::uint64_t i = 0; i < batches * kBatch; ++i) {
        std::swap(seeds[i], seeds[i + random.below(seeds.size() - i)]);
    }
    const NeighborSampler sampler(graph, {kFanouts.begin(), kFanouts.end()}, {.seed = 1});
    Traced traced;
    for (std::uint64_t i = 0; i < batches; ++i) {
        traced.trace.add(
            sampler.sample(std::span(seeds).subspan(i * kBatch, kBatch), i).nodes[0].ids);
    }
    if (arguments.number("hot", 0) != 0) {
        traced.hot = hottest_rows(expected_visits(graph, kFanouts, {.batch = kBatch}),
                                  graph.sources() * slots_percent / 100);
    }
    return traced;
}

RowTrace zipf_trace(double exponent, std::uint64_t batches) {
    const ZipfRows rows(kControlRows, exponent);
    RowTrace trace;
    std::vector<std::uint64_t> ids(4096);
    for (std::uint64_t i = 0; i < batches; ++i) {
        rows.fill(ids, i);
        trace.add(ids);
    }
    return trace;
}

/// Rows read by a cache that gives up the row that is used next.
std::uint64_t read_by_the_worst(const RowTrace& trace, std::uint64_t slots) {
    const std::uint64_t rows = *std::max_element(trace.ids.begin(), trace.ids.end()) + 1;
    std::vector<std::uint64_t> next_of(rows, UINT64_MAX);
    std::vector<std::uint64_t> next(trace.ids.size());
    for (std::uint64_t i = trace.ids.size(); i-- > 0;) {
        next[i] = next_of[trace.ids[i]];
        next_of[trace.ids[i]] = i;
    }
    std::set<std::pair<std::uint64_t, std::uint64_t>> held;  // next use, row
    std::uint64_t read = 0;
    for (std::uint64_t i = 0; i < trace.ids.size(); ++i) {
        if (held.erase({i, trace.ids[i]}) == 0) {
            ++read;
            if (held.size() == slots) {
                held.erase(held.begin());
            }
        }
        held.insert({next[i], trace.ids[i]});
    }
    return read;
}

}  // namespace

void trace(const Arguments& arguments, Figures& figures) {
    const std::uint64_t percent = arguments.number("percent", 5);
    const Traced traced = sampled_trace(arguments, percent);
    const bool no_hints = arguments.handicap("no_hints");
    RowSimulationOptions options;
    options.slots = (std::uint64_t{1} << arguments.number("scale", 21)) * percent / 100;
    options.window = no_hints ? 0 : static_cast<std::uint32_t>(arguments.number("window", 8));
    options.warm_up = arguments.number("warm_up", 0);
    options.hot = traced.hot;
    const RowSimulation run = RowSimulator(traced.trace).run(arguments.text("policy"), options);
    figures.set("value", static_cast<double>(run.rows_read));
    figures.set("rows", run.rows);
    figures.set("preloaded", run.preloaded);
    figures.set("hit_rate", run.hit_rate());
    figures.set("slots", options.slots);
}

void control(const Arguments& arguments, Figures& figures) {
    const bool worst = arguments.handicap("next_used");
    double most = 0;
    for (const double exponent : {0.0, 0.6}) {
        const RowTrace trace = zipf_trace(exponent, arguments.number("batches", 200));
        const RowSimulator simulator(trace);
        const RowSimulationOptions options{.slots = kControlRows * 5 / 100};
        const auto fifo = static_cast<double>(simulator.run("fifo", options).rows_read);
        const auto ours = static_cast<double>(worst ? read_by_the_worst(trace, options.slots)
                                                    : simulator.run("window", options).rows_read);
        figures.set(exponent == 0 ? "uniform" : "zipf", ours / fifo);
        most = std::max(most, ours / fifo);
    }
    figures.set("value", most);
}

void metadata(const Arguments& arguments, Figures& figures) {
    const auto slots = static_cast<std::uint32_t>(arguments.number("slots", 1 << 20));
    const double more = arguments.handicap("tags_64") ? 64 : 0;
    double most = 0;
    for (const RowPolicy policy :
         {RowPolicy::kStatic, RowPolicy::kClock, RowPolicy::kS3Fifo, RowPolicy::kWindow}) {
        const tier::KeyCache cache(slots, policy);
        const double bytes = static_cast<double>(cache.metadata_bytes()) / slots + more;
        figures.set(std::string(name_of(policy)), bytes);
        most = std::max(most, bytes);
    }
    figures.set("value", most);
}

}  // namespace penstock::benchmarks
