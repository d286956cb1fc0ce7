// SPDX-License-Identifier: Apache-2.0
// The results of tune, for people and for machines.
#pragma once

#include "cli/scratch.hpp"
#include "cli/tune/gpu_ways.hpp"
#include "cli/tune/options.hpp"
#include "cli/tune/search.hpp"

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// The slices of one candidate, in the order in which they ran.
struct CandidateSamples {
    std::vector<Sample> read;
    std::vector<Sample> write;
};

/// The input of a report.
struct TuneResult {
    const TuneOptions& options;
    const Target& target;
    const EngineDescription& engine;  ///< of the defaults
    const EngineOptions& defaults;    ///< with `gap_bytes` as measured
    const TuneSearch& search;
    const std::vector<CandidateSamples>& samples;  ///< one per candidate of the search
    double seconds = 0;                            ///< of the whole run
    std::uint64_t written_bytes = 0;               ///< the scratch file included
    std::string why_ended;                         ///< empty, or the reason for an early end
    std::string about;                             ///< a line for the options file
    const GpuWays* gpu = nullptr;                  ///< with --device
};

/// Prints the target, the bytes to be written and the time.
void print_tune_head(std::FILE* out, const TuneOptions& options, const Target& target,
                     const EngineDescription& engine);

/// Prints the table, the verdicts, and the settings to paste.
void print_tune_result(std::FILE* out, const TuneResult& result);

/// One line with the verdict on a goal.
[[nodiscard]] std::string verdict_text(const TuneSearch& search, Goal goal, double gain_min);

/// `jobs` in the form of bench, one per candidate and kind, so that tools for those can draw these.
[[nodiscard]] nlohmann::ordered_json tune_json(std::span<const std::string> command,
                                               const TuneResult& result);

}  // namespace penstock::cli
