// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/command.hpp"

#include "base/text/units.hpp"
#include "cli/bench/fio_peer.hpp"
#include "cli/bench/gpu_bench.hpp"
#include "cli/bench/report.hpp"
#include "cli/scratch.hpp"
#include "report/json_output.hpp"
#include "report/progress.hpp"

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
        : options_(options), json_("--json", options.json), report_(json_.text_stream()) {}

    void run(std::span<const std::string> command) {
        if (!options_.against.empty()) {
            fio_.emplace(progress_);
        }
        // Reports wrong engine options before a gigabyte is written.
        description_ = Engine(probe::engine_options({}, options_.run())).describe();
        make_targets();
        const bool readable_only = std::any_of(targets_.begin(), targets_.end(),
                                               [](const Target& target) { return !target.ours; });
        const std::vector<JobSpec> jobs = options_.jobs(readable_only);
        progress_.clear();
        const std::string fio_version = fio_ ? fio_->version() : "";
        report_.head(options_, targets_, description_, fio_version);
        total_ = jobs.size() * sets().size() * options_.repeats * (fio_ ? 2 : 1);
        for (const JobSpec& job : jobs) {
            const std::vector<JobResult> rows = run_rows(job);
            progress_.clear();
            report_.rows(rows);
            results_.insert(results_.end(), rows.begin(), rows.end());
        }
        report_.foot(targets_);
        json_.write(bench_json(command, targets_, description_, fio_version, results_));
    }

private:
    void make_targets() {
        targets_.reserve(options_.paths.size());
        for (const std::string& path : options_.paths) {
            targets_.push_back(make_target({.command = "bench",
                                            .path = path,
                                            .size_bytes = options_.size_bytes,
                                            .block_bytes_max = options_.block_bytes_max(),
                                            .write_words = options_.write_words(),
                                            .cache = options_.cache},
                                           progress_));
        }
    }

    // Lists the sets that a job runs on: each target alone, then all at once.
    [[nodiscard]] std::vector<std::vector<std::size_t>> sets() const {
        std::vector<std::vector<std::size_t>> all;
        std::vector<std::size_t> every;
        for (std::size_t i = 0; i < targets_.size(); ++i) {
            all.push_back({i});
            every.push_back(i);
        }
        if (every.size() > 1) {
            all.push_back(every);
        }
        return all;
    }

    [[nodiscard]] std::vector<const Target*> targets_of(const JobResult& row) const {
        std::vector<const Target*> found;
        for (const std::size_t i : row.targets) {
            found.push_back(&targets_[i]);
        }
        return found;
    }

    // Runs all sets of a job in turns, so that a drift of the machine affects all alike.
    std::vector<JobResult> run_rows(const JobSpec& job) {
        std::vector<JobResult> rows;
        for (const auto& set : sets()) {
            rows.emplace_back();
            rows.back().job = job;
            rows.back().targets = set;
            if (fio_) {
                announce(job, "choosing fio's engine: ");
                fio_->choose(job, targets_of(rows.back()));
                rows.back().peer_engine = fio_->engine();
            }
        }
        for (std::uint32_t i = 0; i < options_.repeats; ++i) {
            for (JobResult& row : rows) {
                run_pair(row, i % 2 == 0);  // A B B A A B ...
            }
        }
        return rows;
    }

    void run_pair(JobResult& row, bool ours_first) {
        if (fio_ && !ours_first) {
            run_fio(row);
        }
        ++step_;
        announce(row.job, "");
        row.ours.push_back(
            probe::run_job(row.job, options_.run(), targets_of(row), pool_, progress_));
        if (fio_ && ours_first) {
            run_fio(row);
        }
    }

    void run_fio(JobResult& row) {
        ++step_;
        announce(row.job, "");
        fio_->use(row.peer_engine);
        row.peers.push_back(fio_->run(row.job, targets_of(row), options_.seconds));
    }

    void announce(const JobSpec& job, const std::string& what) {
        const double left = static_cast<double>(total_ - step_ + 1) * options_.seconds;
        progress_.step(fmt::format("[{}/{}] about {:.0f} s left: {} {}, depth {}: {}",
                                   std::max<std::size_t>(step_, 1), total_, left, to_string(job.rw),
                                   base::format_bytes(job.block_bytes), job.depth, what));
    }

    const BenchOptions& options_;
    report::JsonOutput json_;
    report::Progress progress_;
    BenchReport report_;
    std::optional<FioPeer> fio_;
    EngineDescription description_;
    std::vector<Target> targets_;
    MemoryPool pool_;
    std::vector<JobResult> results_;
    std::size_t step_ = 0;
    std::size_t total_ = 0;
};

}  // namespace

void bench(const BenchOptions& options, std::span<const std::string> command) {
    if (options.gpu >= 0) {
        bench_gpu(options, command);
        return;
    }
    Bench(options).run(command);
}

}  // namespace penstock::cli
