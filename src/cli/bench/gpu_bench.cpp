// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/gpu_bench.hpp"

#include "base/environment.hpp"
#include "base/text/units.hpp"
#include "cli/bench/fio_peer.hpp"
#include "cli/bench/gpu_peers.hpp"
#include "cli/bench/report.hpp"
#include "cli/gpu_option.hpp"
#include "probe/gpu.hpp"
#include "probe/statistics.hpp"
#include "report/environment.hpp"
#include "report/flush.hpp"
#include "report/json_output.hpp"
#include "report/message.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

namespace penstock::cli {

namespace {

constexpr const char* kOurs = "penstock";
constexpr const char* kDisk = "to the host";
constexpr const char* kCopies = "pinned copy";
constexpr const char* kFakeMark = "FAKE";
constexpr const char* kGpuLine = "{:<10}{:>8}{:>6}  {:<17}{:>8}{:>10}{:>9}\n";

// The folder of the fake driver: what PENSTOCK_FAKE_GPU names, else that of the build in which this
// program is (build/x/bin/penstock).
std::string fake_gpu_folder() {
    constexpr const char* kName = "libcuda.so.1";
    std::error_code code;
    std::vector<std::filesystem::path> folders;
    if (const auto given = base::environment_text("FAKE_GPU")) {
        folders = {*given};
    } else {
        const auto program = std::filesystem::read_symlink("/proc/self/exe", code);
        folders = {program.parent_path().parent_path() / "tests" / "fake_gpu"};
    }
    if (std::filesystem::exists(folders.front() / kName, code)) {
        return folders.front().string();
    }
    throw Error(ErrorCode::kInvalidArgument, 0, "bench", {}, kNoOffset,
                fmt::format("--fake-gpu: there is no {} in {}; the fake driver is part of a "
                            "development build (target fake_cuda), and PENSTOCK_FAKE_GPU names "
                            "its folder",
                            kName, folders.front().string()));
}

// A row holds the runs of each side, the i-th of all in the same turn.
struct GpuRow {
    JobSpec job;
    std::string fio_engine;
    std::vector<std::pair<std::string, std::vector<Sample>>> sides;

    [[nodiscard]] const std::vector<Sample>& of(const std::string& name) const {
        const auto found = std::find_if(sides.begin(), sides.end(),
                                        [&](const auto& side) { return side.first == name; });
        return found->second;
    }
    // Ours over the lesser of disk and copies, turn by turn.
    [[nodiscard]] std::vector<double> of_the_possible() const {
        std::vector<double> ratios;
        for (std::size_t i = 0; i < of(kOurs).size(); ++i) {
            ratios.push_back(of(kOurs)[i].bytes_per_s() /
                             std::min(of(kDisk)[i].bytes_per_s(), of(kCopies)[i].bytes_per_s()));
        }
        return ratios;
    }
};

std::vector<double> gpu_rates(const std::vector<Sample>& samples) {
    std::vector<double> all;
    for (const Sample& sample : samples) {
        all.push_back(sample.bytes_per_s());
    }
    return all;
}

class GpuBench {
public:
    explicit GpuBench(const BenchOptions& options)
        : options_(options),
          json_("--json", options.json),
          out_(json_.text_stream()),
          style_(out_) {
        PeerDriver driver;
        driver.gpu = options.gpu;
        if (options.fake_bytes_per_s > 0) {
            driver.fake_folder = fake_gpu_folder();
            driver.fake_bytes_per_s = options.fake_bytes_per_s;
            probe::load_fake_gpu(driver.fake_folder + "/libcuda.so.1", options.fake_bytes_per_s);
        }
        gpu_ = find_gpu("bench", options.gpu);
        fake_ = probe::gpu_is_fake();
        peers_ = find_gpu_peers(driver, progress_);
        try {
            fio_.emplace(progress_);
        } catch (const Error& error) {
            if (!options.against.empty()) {
                throw;
            }
            peers_.absent.push_back("fio: not installed (sudo apt-get install fio)");
        }
    }

    void run(std::span<const std::string> command) {
        const EngineDescription description =
            Engine(probe::engine_options({}, options_.run())).describe();
        const Target target = make_target({.command = "bench",
                                           .path = options_.paths.front(),
                                           .size_bytes = options_.size_bytes,
                                           .block_bytes_max = options_.block_bytes_max(),
                                           .write_words = options_.write_words(),
                                           .cache = options_.cache},
                                          progress_);
        head(target, description);
        const std::vector<JobSpec> jobs = options_.jobs(!target.ours);
        for (const JobSpec& job : jobs) {
            rows_.push_back(run_row(job, target));
            progress_.clear();
            print_row(rows_.back());
        }
        foot(target);
        json_.write(report_json(command, target, description));
    }

private:
    using RunSide = std::function<Sample()>;

    GpuRow run_row(const JobSpec& job, const Target& target) {
        GpuRow row;
        row.job = job;
        const std::vector<const Target*> targets{&target};
        probe::RunOptions to_gpu = options_.run();
        probe::RunOptions to_host = to_gpu;
        to_host.gpu = -1;
        std::vector<std::pair<std::string, RunSide>> sides;
        sides.emplace_back(
            kOurs, [&, to_gpu] { return probe::run_job(job, to_gpu, targets, pool_, progress_); });
        sides.emplace_back(kDisk, [&, to_host] {
            return probe::run_job(job, to_host, targets, pool_, progress_);
        });
        sides.emplace_back(kCopies, [&] {
            return probe::run_copies(options_.gpu, job.block_bytes, probe::is_write(job.rw),
                                     options_.seconds, progress_);
        });
        if (fio_) {
            progress_.step("choosing fio's engine: ");
            fio_->choose(job, targets);
            row.fio_engine = fio_->engine();
            sides.emplace_back("fio to the host",
                               [&] { return fio_->run(job, targets, options_.seconds); });
        }
        for (const auto& peer : peers_.found) {
            if (peer->refusal(job).empty()) {
                sides.emplace_back(peer->name(), [&] {
                    return peer->run(job, target, options_.seconds, progress_);
                });
            }
        }
        for (const auto& [name, run] : sides) {
            row.sides.emplace_back(name, std::vector<Sample>());
        }
        run_in_turns(row, sides);
        return row;
    }

    // Each turn begins with another side, so that a drift of the machine affects all alike.
    void run_in_turns(GpuRow& row, std::vector<std::pair<std::string, RunSide>>& sides) {
        std::vector<bool> failed(sides.size(), false);
        for (std::uint32_t turn = 0; turn < options_.repeats; ++turn) {
            for (std::size_t i = 0; i < sides.size(); ++i) {
                const std::size_t which = (i + turn) % sides.size();
                const auto& [name, run] = sides[which];
                if (failed[which]) {
                    continue;
                }
                progress_.step(fmt::format("{} {}, turn {} of {}: {} ", to_string(row.job.rw),
                                           base::format_bytes(row.job.block_bytes), turn + 1,
                                           options_.repeats, name));
                try {
                    row.sides[which].second.push_back(run());
                    row.sides[which].second.back().side = name;
                } catch (const Error& error) {
                    if (name == kOurs || name == kDisk || name == kCopies) {
                        throw;
                    }
                    failed[which] = true;  // a program of others that does not run here
                    failures_[name] = report::message_of(error);
                }
            }
        }
        for (std::size_t i = sides.size(); i-- > 0;) {
            if (failed[i]) {
                row.sides.erase(row.sides.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
    }

    [[nodiscard]] std::string gpu_name() const {
        if (!fake_) {
            return fmt::format("{}, {}, PCI {}", gpu_.name, base::format_bytes(gpu_.memory_bytes),
                               gpu_.pci);
        }
        return fmt::format("{} GPU: the fake driver, {}", kFakeMark,
                           options_.fake_bytes_per_s > 0
                               ? "copies at " + base::format_rate(options_.fake_bytes_per_s)
                               : "copies at the rate of its environment");
    }

    void head(const Target& target, const EngineDescription& description) const {
        fmt::print(out_, "Penstock {} bench of {}, memory of cuda:{}{}\n", PENSTOCK_VERSION,
                   options_.paths.front(), options_.gpu,
                   fake_ ? fmt::format(" ({})", kFakeMark) : "");
        fmt::print(out_, "       gpu {}\n", gpu_name());
        fmt::print(out_, "      disk {}\n", report::target_text(target));
        fmt::print(out_, "      file {}, {}; {}\n", target.path, base::format_bytes(target.bytes),
                   target.ours ? "removed at the end" : "only read");
        fmt::print(out_, "    engine {}\n", engine_text(description, style_));
        for (const auto& peer : peers_.found) {
            fmt::print(out_, "      peer {}\n", peer->version());
        }
        if (fio_) {
            fmt::print(out_, "      peer {}, to memory of the host\n", fio_->version());
        }
        for (const std::string& one : peers_.absent) {
            fmt::print(out_, "    absent {}\n", one);
        }
        fmt::print(out_, "\n{}",
                   style_.paint(report::Colour::kBold,
                                fmt::format(fmt::runtime(kGpuLine), "test", "block", "QD", "by",
                                            "GB/s", "CPU s/GiB", "runs")));
        report::flush(out_);
    }

    void print_row(const GpuRow& row) const {
        bool first = true;
        for (const auto& [name, samples] : row.sides) {
            const auto rates = gpu_rates(samples);
            double cpu = 0;
            for (const Sample& sample : samples) {
                cpu += sample.cpu_s_per_gib() / static_cast<double>(samples.size());
            }
            const bool on_gpu = name != kDisk && name != "fio to the host";
            fmt::print(
                out_, fmt::runtime(kGpuLine), first ? to_string(row.job.rw) : "",
                first ? base::format_bytes(row.job.block_bytes) : "",
                first ? std::to_string(row.job.depth) : "",
                name + (fake_ && on_gpu ? fmt::format(" {}", kFakeMark) : ""),
                fmt::format("{:.2f}", probe::median(rates) / 1e9),
                cpu > 0 ? fmt::format("{:.3f}", cpu) : "-",
                rates.size() < 2 ? "-" : fmt::format("±{:.1f} %", 100 * probe::half_range(rates)));
            first = false;
        }
        const auto ratios = row.of_the_possible();
        const probe::RatioInterval interval = probe::ratio_interval(ratios);
        fmt::print(out_, "  penstock / the lesser of disk and copies{}: {:.3f}{}\n",
                   fake_ ? fmt::format(" ({})", kFakeMark) : "", interval.mean,
                   ratios.size() < 2 ? ""
                                     : fmt::format(", 95 % interval {:.3f} to {:.3f}", interval.low,
                                                   interval.high));
        report::flush(out_);
    }

    void foot(const Target& target) const {
        fmt::print(out_,
                   "\nto the host: the same row to memory of the host, so the disk. pinned copy: "
                   "bare\ncopies between pinned memory and the GPU. Nothing that goes through "
                   "memory of the\nhost is faster than the lesser of the two. Each figure is the "
                   "median of {} runs.\n",
                   options_.repeats);
        for (const auto& [name, why] : failures_) {
            fmt::print(out_, "\n{} left out: {}\n", name, why);
        }
        if (!target.file.info().direct) {
            fmt::print(out_, "\n{} the bytes went through the page cache ({}).\n",
                       style_.paint(report::Colour::kYellow, "Note:"), target.file.info().reason);
        }
        if (fake_) {
            fmt::print(out_,
                       "\n{} the GPU is {}: threads of this machine copied. No figure here says "
                       "anything of\na GPU.\n",
                       style_.paint(report::Colour::kYellow, "Note:"), kFakeMark);
        }
        report::flush(out_);
    }

    [[nodiscard]] nlohmann::json report_json(std::span<const std::string> command,
                                             const Target& target,
                                             const EngineDescription& description) const {
        nlohmann::json json{{"command", command_json(command)},
                            {"environment", report::machine_json()},
                            {"target", report::target_json(target)},
                            {"engine", report::engine_json(description)},
                            {"gpu",
                             {{"number", gpu_.number},
                              {"name", (fake_ ? "FAKE: " : "") + gpu_.name},
                              {"pci", gpu_.pci},
                              {"memory_bytes", gpu_.memory_bytes},
                              {"fake", fake_}}},
                            {"peers", nlohmann::json::array()},
                            {"absent", peers_.absent},
                            {"failed", failures_},
                            {"jobs", nlohmann::json::array()}};
        if (fake_) {
            json["gpu"]["fake_bytes_per_s"] = options_.fake_bytes_per_s;
        }
        for (const auto& peer : peers_.found) {
            json["peers"].push_back(peer->version());
        }
        if (fio_) {
            json["environment"]["fio"] = fio_->version();
        }
        for (const GpuRow& row : rows_) {
            json["jobs"].push_back(row_json(row));
        }
        return json;
    }

    [[nodiscard]] nlohmann::json row_json(const GpuRow& row) const {
        nlohmann::json json{{"rw", to_string(row.job.rw)},
                            {"block_bytes", row.job.block_bytes},
                            {"depth", row.job.depth},
                            {"fake", fake_},
                            {"samples", nlohmann::json::array()}};
        for (const auto& [name, samples] : row.sides) {
            json["median_bytes_per_s"][name] = probe::median(gpu_rates(samples));
            for (const Sample& sample : samples) {
                json["samples"].push_back(sample_json(sample));
            }
        }
        const auto ratios = row.of_the_possible();
        const probe::RatioInterval interval = probe::ratio_interval(ratios);
        json["ratio_to_the_possible"] = {
            {"mean", interval.mean}, {"min", interval.min}, {"max", interval.max}};
        if (ratios.size() > 1) {
            json["ratio_to_the_possible"]["ci95"] = {interval.low, interval.high};
        }
        return json;
    }

    const BenchOptions& options_;
    report::JsonOutput json_;
    std::FILE* out_;
    report::Style style_;
    report::Progress progress_;
    Gpu gpu_;
    bool fake_ = false;
    GpuPeers peers_;
    std::optional<FioPeer> fio_;
    MemoryPool pool_;
    std::vector<GpuRow> rows_;
    std::map<std::string, std::string> failures_;
};

}  // namespace

void bench_gpu(const BenchOptions& options, std::span<const std::string> command) {
    GpuBench(options).run(command);
}

}  // namespace penstock::cli
