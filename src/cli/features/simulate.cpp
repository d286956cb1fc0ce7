// SPDX-License-Identifier: Apache-2.0
// Command simulate: a table of policies for each size of the cache.
#include "base/raise.hpp"
#include "cli/features/command.hpp"
#include "format/fault.hpp"
#include "report/flush.hpp"
#include "report/json_output.hpp"

#include <penstock/engine.hpp>
#include <penstock/features.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace penstock::cli {

namespace {

constexpr double kSlotsMax = 1U << 30U;  // that a simulator takes

struct CacheSize {
    std::string word;
    std::uint64_t slots = 0;
};

[[noreturn]] void refuse_cache(const std::string& word) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "simulate",
                            fmt::format("--cache: got '{}'; expected rows such as 100000, or a "
                                        "share of the table's such as 5%",
                                        format::escaped(word))));
}

CacheSize cache_of(const std::string& word, std::uint64_t rows) {
    std::string_view number = word;
    const bool is_share = number.ends_with('%');
    number.remove_suffix(is_share ? 1 : 0);
    const char* const end = number.data() + number.size();
    double value = 0;
    const auto parsed = std::from_chars(number.data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end || !(value >= 0) ||
        (is_share ? value > 100 : value > 1e9 || value != std::floor(value))) {
        refuse_cache(word);
    }
    const double slots = is_share ? static_cast<double>(rows) * value / 100 : value;
    if (slots > kSlotsMax) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "simulate",
                                fmt::format("--cache: {} of {} rows are {:.0f}; expected at most "
                                            "{:.0f}: give fewer",
                                            word, rows, slots, kSlotsMax)));
    }
    return {word, static_cast<std::uint64_t>(slots)};
}

std::vector<std::string> policies_of(const SimulateOptions& options) {
    const std::span<const std::string_view> known = row_simulation_policies();
    return options.policies.empty() ? std::vector<std::string>(known.begin(), known.end())
                                    : options.policies;
}

// Refuses an unknown name before the known ones run, which may take minutes.
void check_policies(const SimulateOptions& options) {
    const std::span<const std::string_view> known = row_simulation_policies();
    for (const std::string& policy : options.policies) {
        if (std::find(known.begin(), known.end(), policy) == known.end()) {
            static_cast<void>(RowSimulator(RowTrace()).run(policy, {}));  // says why
        }
    }
}

std::uint64_t rows_of(const SimulateOptions& options, const RowTrace& trace) {
    const std::uint64_t least =
        trace.ids.empty() ? 0 : *std::max_element(trace.ids.begin(), trace.ids.end()) + 1;
    if (options.rows != 0 && options.rows < least) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, "simulate",
            fmt::format("--rows: got {}, and the trace has row {}", options.rows, least - 1)));
    }
    return options.rows == 0 ? least : options.rows;
}

nlohmann::ordered_json json_of(const CacheSize& cache, const std::string& policy,
                               const RowSimulation& run) {
    return {{"cache", cache.word},       {"slots", cache.slots}, {"policy", policy},
            {"batches", run.batches},    {"rows", run.rows},     {"rows_read", run.rows_read},
            {"hit_rate", run.hit_rate()}};
}

}  // namespace

int simulate_features(const SimulateOptions& options, std::span<const std::string> command) {
    check_policies(options);
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    Engine engine;
    const RowTrace trace = read_row_trace(engine, options.trace, options.batch);
    const std::uint64_t rows = rows_of(options, trace);
    std::vector<CacheSize> caches;
    for (const std::string& word : options.caches) {
        caches.push_back(cache_of(word, rows));
    }
    fmt::print(out, "{}: {} batches, {} ids, of a table of {} rows\n",
               format::escaped(options.trace), trace.ends.size(), trace.ids.size(), rows);
    const RowSimulator simulator(trace);
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const CacheSize& cache : caches) {
        fmt::print(out, "\n  {:<24} {:>8} {:>14} {:>12}\n",
                   fmt::format("cache of {} rows", cache.slots), "hits", "rows read", "by belady");
        RowSimulationOptions simulated;
        simulated.slots = cache.slots;
        simulated.window = options.window;
        simulated.warm_up = options.warm_up;
        const std::uint64_t least = simulator.run("belady", simulated).rows_read;
        for (const std::string& policy : policies_of(options)) {
            const RowSimulation run = simulator.run(policy, simulated);
            const double ratio =
                least == 0 ? 1 : static_cast<double>(run.rows_read) / static_cast<double>(least);
            fmt::print(out, "  {:<24} {:>7.1f}% {:>14} {:>12.3f}\n",
                       policy == "window" ? fmt::format("window of {}", options.window) : policy,
                       100 * run.hit_rate(), run.rows_read, ratio);
            report::flush(out);
            runs.push_back(json_of(cache, policy, run));
        }
    }
    nlohmann::ordered_json words = nlohmann::ordered_json::array({"penstock"});
    for (const std::string& word : command) {
        words.push_back(word);
    }
    json.write({{"command", words},
                {"trace", options.trace},
                {"batches", trace.ends.size()},
                {"ids", trace.ids.size()},
                {"rows", rows},
                {"window", options.window},
                {"warm_up", options.warm_up},
                {"runs", runs}});
    return 0;
}

}  // namespace penstock::cli
