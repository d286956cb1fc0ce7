// SPDX-License-Identifier: Apache-2.0
// What bench found, for people (a table, row by row as it grows) and for machines (JSON).
#pragma once

#include "cli/bench_job.hpp"
#include "cli/bench_options.hpp"
#include "cli/bench_scratch.hpp"

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// A row with all of its runs, in the order in which they ran.
struct JobResult {
    JobSpec job;
    std::string peer_engine;  ///< fio's, when there is a peer
    std::vector<Sample> ours;
    std::vector<Sample> peers;  ///< the i-th is the pair of ours[i]
};

class BenchReport {
public:
    /// The table goes to `out`.
    explicit BenchReport(std::FILE* out) : out_(out) {}

    void head(const BenchOptions& options, const Target& target, const EngineDescription& engine,
              const std::string& fio_version);
    void row(const JobResult& result);
    /// How to read it, and what is to be doubted.
    void foot(const Target& target);

private:
    std::FILE* out_;
    std::size_t runs_ = 0;
    bool peers_ = false;
    double worst_spread_ = 0;
};

/// All of it.
[[nodiscard]] nlohmann::json bench_json(std::span<const std::string> command, const Target& target,
                                        const EngineDescription& engine,
                                        const std::string& fio_version,
                                        const std::vector<JobResult>& results);

}  // namespace penstock::cli
