// SPDX-License-Identifier: Apache-2.0
// The results of bench, for people (a table, row by row as it grows) and for machines (JSON).
#pragma once

#include "cli/bench/options.hpp"
#include "cli/scratch.hpp"
#include "report/style.hpp"

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// A row with all of its runs, in the order in which they ran.
struct JobResult {
    JobSpec job;
    std::vector<std::size_t> targets;  ///< their indices; all at once if there are several
    std::string peer_engine;           ///< fio's, when there is a peer
    std::vector<Sample> ours;
    std::vector<Sample> peers;  ///< the i-th is the pair of ours[i]
};

class BenchReport {
public:
    /// The table goes to `out`.
    explicit BenchReport(std::FILE* out) : out_(out), style_(out) {}

    void head(const BenchOptions& options, const std::vector<Target>& targets,
              const EngineDescription& engine, const std::string& fio_version);
    /// Prints the rows of one job: one per target, and one for all of them.
    void rows(const std::vector<JobResult>& results);
    /// Prints how to read the table, and its doubts.
    void foot(const std::vector<Target>& targets);

private:
    void row(const JobResult& result);

    std::FILE* out_;
    report::Style style_;
    std::size_t runs_ = 0;
    bool peers_ = false;
    bool several_ = false;
    double worst_spread_ = 0;
    double most_ = 0;  ///< bytes a second of the fastest row so far: a full bar
};

/// The backend, its details and why it is not another, in lines that fit the terminal.
[[nodiscard]] std::string engine_text(const EngineDescription& engine, const report::Style& style);

/// One run.
[[nodiscard]] nlohmann::json sample_json(const Sample& sample);

/// "penstock" and its arguments.
[[nodiscard]] nlohmann::json command_json(std::span<const std::string> command);

/// The whole report. `target` is present for a single target, `targets` always; a job's `paths`
/// names those that it ran on.
[[nodiscard]] nlohmann::json bench_json(std::span<const std::string> command,
                                        const std::vector<Target>& targets,
                                        const EngineDescription& engine,
                                        const std::string& fio_version,
                                        const std::vector<JobResult>& results);

}  // namespace penstock::cli
