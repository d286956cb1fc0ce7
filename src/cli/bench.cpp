// SPDX-License-Identifier: Apache-2.0
#include "cli/bench.hpp"

#include "base/units.hpp"
#include "cli/bench_job.hpp"
#include "cli/bench_report.hpp"
#include "cli/bench_scratch.hpp"
#include "cli/fio_peer.hpp"
#include "cli/json_output.hpp"
#include "cli/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace penstock::cli {

namespace {

class Bench {
public:
    explicit Bench(const BenchOptions& options)
        : options_(options), json_(options.json), report_(json_.text_stream()) {}

    void run(std::span<const std::string> command) {
        if (!options_.against.empty()) {
            fio_.emplace(progress_);
        }
        // Wrong engine options are told before a gigabyte is written.
        description_ = Engine(engine_options({}, options_)).describe();
        target_ = make_target(options_, progress_);
        const std::vector<JobSpec> jobs = options_.jobs(!target_.ours);
        progress_.clear();
        const std::string fio_version = fio_ ? fio_->version() : "";
        report_.head(options_, target_, description_, fio_version);
        total_ = jobs.size() * options_.repeats * (fio_ ? 2 : 1);
        for (const JobSpec& job : jobs) {
            results_.push_back(run_row(job));
            progress_.clear();
            report_.row(results_.back());
        }
        report_.foot(target_);
        json_.write(bench_json(command, target_, description_, fio_version, results_));
    }

private:
    JobResult run_row(const JobSpec& job) {
        JobResult result;
        result.job = job;
        if (fio_) {
            announce(job, "choosing fio's engine: ");
            fio_->choose(job, target_);
            result.peer_engine = fio_->engine();
        }
        for (std::uint32_t i = 0; i < options_.repeats; ++i) {
            // A B B A A B ...: what drifts meets both alike.
            const bool ours_first = i % 2 == 0;
            if (fio_ && !ours_first) {
                run_fio(job, result);
            }
            ++step_;
            announce(job, "");
            result.ours.push_back(run_job(job, options_, target_, pool_, progress_));
            if (fio_ && ours_first) {
                run_fio(job, result);
            }
        }
        return result;
    }

    void run_fio(const JobSpec& job, JobResult& result) {
        ++step_;
        announce(job, "");
        result.peers.push_back(fio_->run(job, target_, options_.seconds));
    }

    void announce(const JobSpec& job, const std::string& what) {
        const double left = static_cast<double>(total_ - step_ + 1) * options_.seconds;
        progress_.step(fmt::format("[{}/{}] about {:.0f} s left: {} {}, depth {}: {}",
                                   std::max<std::size_t>(step_, 1), total_, left, to_string(job.rw),
                                   base::format_bytes(job.block_bytes), job.depth, what));
    }

    const BenchOptions& options_;
    JsonOutput json_;
    Progress progress_;
    BenchReport report_;
    std::optional<FioPeer> fio_;
    EngineDescription description_;
    Target target_;
    MemoryPool pool_;
    std::vector<JobResult> results_;
    std::size_t step_ = 0;
    std::size_t total_ = 0;
};

}  // namespace

void bench(const BenchOptions& options, std::span<const std::string> command) {
    Bench(options).run(command);
}

}  // namespace penstock::cli
