// SPDX-License-Identifier: Apache-2.0
// What tune found, for people and for machines.
#pragma once

#include "cli/bench/job.hpp"
#include "cli/scratch.hpp"
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

/// All that a report is made of.
struct TuneResult {
    const TuneOptions& options;
    const Target& target;
    const EngineDescription& engine;  ///< of the defaults
    const EngineOptions& defaults;
    const TuneSearch& search;
    const std::vector<CandidateSamples>& samples;  ///< a candidate of the search
    double seconds = 0;                            ///< of all of it
    std::uint64_t written_bytes = 0;               ///< the scratch file included
    std::string why_ended;                         ///< before it knew, or empty
    std::string about;                             ///< a line for the options file
};

/// Where, how much is written, how long.
void print_tune_head(std::FILE* out, const TuneOptions& options, const Target& target,
                     const EngineDescription& engine);

/// The table, what is known, and the settings to paste.
void print_tune_result(std::FILE* out, const TuneResult& result);

/// One line of what is known about a goal.
[[nodiscard]] std::string verdict_text(const TuneSearch& search, Goal goal, double gain_min);

/// `jobs` as bench has them, a job a candidate and kind, so that whoever draws those draws these.
[[nodiscard]] nlohmann::ordered_json tune_json(std::span<const std::string> command,
                                               const TuneResult& result);

}  // namespace penstock::cli
