// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/report.hpp"

#include "base/text/units.hpp"
#include "os/machine/limits.hpp"
#include "probe/statistics.hpp"
#include "report/environment.hpp"
#include "report/flush.hpp"
#include "report/style.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace penstock::cli {

namespace {

constexpr double kNoisy = 0.1;  // half the range of the runs, of their median

template <typename Get>
std::vector<double> values(const std::vector<Sample>& samples, Get get) {
    std::vector<double> all;
    for (const Sample& sample : samples) {
        all.push_back(static_cast<double>(get(sample)));
    }
    return all;
}

template <typename Get>
double middle(const std::vector<Sample>& samples, Get get) {
    return probe::median(values(samples, get));
}

std::string latency(double nanoseconds) {
    return nanoseconds > 0 ? base::format_duration(static_cast<std::int64_t>(nanoseconds)) : "-";
}

// Three digits from 0.01 up: 0.0081, 0.731, 7.02, 14.1, 153. Values that are rounded to a power of
// ten count as that.
std::string rate(double value) {
    constexpr double kRounding = 1.0006;
    const double power = value > 0 ? std::floor(std::log10(value * kRounding)) : 0;
    const int digits = std::clamp(2 - static_cast<int>(power), 0, 4);
    return fmt::format("{:.{}f}", value, digits);
}

// At most six columns: 812, 15.2 k, 153 k, 1.21 M
std::string count(double value) {
    if (value >= 999.5e3) {
        return rate(value / 1e6) + " M";
    }
    return value >= 9999.5 ? rate(value / 1e3) + " k" : fmt::format("{:.0f}", value);
}

std::string spread(const std::vector<double>& rates) {
    if (rates.size() < 2) {
        return "-";
    }
    const double percent = 100 * probe::half_range(rates);
    return fmt::format("±{:.{}f} %", percent, percent < 9.95 ? 1 : 0);
}

std::vector<double> rates_of(const std::vector<Sample>& samples) {
    return values(samples, [](const Sample& s) { return s.bytes_per_s(); });
}

// 80 columns with the bar, 79 with the label of a target in its place.
constexpr const char* kLine = "{:<9}{:>8}{:>5} {:<8} {:>6}{}{:>6} {:>7} {:>7} {:>6} {:>6}\n";

// `bar` is nothing, or has a space on each side.
std::string sample_line(const std::string& kind, const std::string& block, const std::string& depth,
                        const std::vector<Sample>& samples, const std::string& bar) {
    const auto bytes = rates_of(samples);
    return fmt::format(fmt::runtime(kLine), kind, block, depth, samples.front().side,
                       rate(probe::median(bytes) / 1e9), bar,
                       count(middle(samples, [](const Sample& s) { return s.operations_per_s(); })),
                       latency(middle(samples, [](const Sample& s) { return s.p50_ns; })),
                       latency(middle(samples, [](const Sample& s) { return s.p99_ns; })),
                       rate(middle(samples, [](const Sample& s) { return s.cpu_s_per_gib(); })),
                       spread(bytes));
}

// The prefix "[2] " of a row if there are several targets; "all " for all of them.
std::string label(const JobResult& result, bool several) {
    if (!several) {
        return "";
    }
    return fmt::format("{:<4}", result.targets.size() > 1
                                    ? "all"
                                    : fmt::format("[{}]", result.targets.front() + 1));
}

// The rate of all at once, relative to the sum of each alone in the same turn.
std::vector<double> together_by_sum(const std::vector<JobResult>& results) {
    std::vector<double> all;
    for (std::size_t turn = 0; turn < results.back().ours.size(); ++turn) {
        double sum = 0;
        for (const JobResult& result : results) {
            sum += result.targets.size() == 1 ? result.ours[turn].bytes_per_s() : 0;
        }
        all.push_back(results.back().ours[turn].bytes_per_s() / sum);
    }
    return all;
}

std::vector<double> ratios(const JobResult& result) {
    std::vector<double> all;
    for (std::size_t i = 0; i < std::min(result.ours.size(), result.peers.size()); ++i) {
        all.push_back(result.ours[i].bytes_per_s() / result.peers[i].bytes_per_s());
    }
    return all;
}

std::string ratio_line(const JobResult& result, const report::Style& style) {
    const auto all = ratios(result);
    const probe::RatioInterval interval = probe::ratio_interval(all);
    if (all.size() < 2) {
        return fmt::format("  Penstock / fio ({}): {:.3f}\n", result.peer_engine, interval.mean);
    }
    const report::Colour colour = report::colour_of_ratio(interval.low, interval.high);
    return fmt::format("  Penstock / fio ({}): {}, 95 % interval {:.3f} to {:.3f}{}\n",
                       result.peer_engine,
                       style.paint(colour, fmt::format("{:.3f}", interval.mean)), interval.low,
                       interval.high, colour == report::Colour::kNone ? "; undecided" : "");
}

}  // namespace

nlohmann::json sample_json(const Sample& sample) {
    nlohmann::json histogram = nlohmann::json::array();  // [at most so many ns, blocks]
    for (const LatencyBucket& bucket : sample.histogram) {
        histogram.push_back({bucket.upper_ns, bucket.requests});
    }
    return {{"side", sample.side},
            {"seconds", sample.seconds},
            {"bytes", sample.bytes},
            {"operations", sample.operations},
            {"cpu_s", sample.cpu_s},
            {"bytes_per_s", sample.bytes_per_s()},
            {"operations_per_s", sample.operations_per_s()},
            {"cpu_s_per_gib", sample.cpu_s_per_gib()},
            {"latency_ns",
             {{"p50", sample.p50_ns},
              {"p99", sample.p99_ns},
              {"p99.9", sample.p999_ns},
              {"histogram", histogram}}}};
}

nlohmann::json command_json(std::span<const std::string> command) {
    nlohmann::json words = nlohmann::json::array({"penstock"});
    for (const std::string& word : command) {
        words.push_back(word);
    }
    return words;
}

namespace {

nlohmann::json interval_json(const std::vector<double>& all) {
    const probe::RatioInterval interval = probe::ratio_interval(all);
    nlohmann::json json{{"mean", interval.mean}, {"min", interval.min}, {"max", interval.max}};
    if (all.size() > 1) {
        json["ci95"] = {interval.low, interval.high};
    }
    return json;
}

nlohmann::json job_json(const JobResult& result, const std::vector<Target>& targets) {
    nlohmann::json json{{"rw", to_string(result.job.rw)},
                        {"block_bytes", result.job.block_bytes},
                        {"depth", result.job.depth},
                        {"paths", nlohmann::json::array()},
                        {"samples", nlohmann::json::array()}};
    for (const std::size_t i : result.targets) {
        json["paths"].push_back(targets[i].path);
    }
    for (std::size_t i = 0; i < result.ours.size(); ++i) {
        json["samples"].push_back(sample_json(result.ours[i]));
        if (i < result.peers.size()) {
            json["samples"].push_back(sample_json(result.peers[i]));
        }
    }
    const auto bytes = values(result.ours, [](const Sample& s) { return s.bytes_per_s(); });
    json["median_bytes_per_s"] = probe::median(bytes);
    json["half_range"] = probe::half_range(bytes);
    if (!result.peers.empty()) {
        json["peer"] = {{"name", "fio"}, {"ioengine", result.peer_engine}};
        json["ratio"] = interval_json(ratios(result));
    }
    return json;
}

}  // namespace

std::string engine_text(const EngineDescription& engine, const report::Style& style) {
    constexpr std::size_t kIndent = 11;  // of the facts at the top
    const std::string backend =
        fmt::format("{}{}{}, kernel {}", engine.backend, engine.detail.empty() ? "" : ": ",
                    engine.detail, os::kernel_release());
    std::string lines = style.wrap(backend, kIndent);
    for (const std::string& refusal : engine.refusals) {
        lines += fmt::format("\n{:{}}{}", "", kIndent, style.wrap(refusal, kIndent));
    }
    return lines;
}

void BenchReport::head(const BenchOptions& options, const std::vector<Target>& targets,
                       const EngineDescription& engine, const std::string& fio_version) {
    fmt::print(out_, "Penstock {} bench of {}\n", PENSTOCK_VERSION, fmt::join(options.paths, ", "));
    several_ = targets.size() > 1;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        const Target& target = targets[i];
        const std::string number = several_ ? fmt::format("[{}]", i + 1) : "";
        fmt::print(out_, "{:<4}  disk {}\n", number, report::target_text(target));
        if (target.ours) {
            fmt::print(out_, "      file {}, {} of random bytes; removed at the end\n", target.path,
                       base::format_bytes(target.bytes));
        } else {
            fmt::print(out_, "      file {}, {} of it; only read{}\n", target.path,
                       base::format_bytes(target.bytes),
                       options.rws.empty()
                           ? ". Write tests need a folder: bench then makes its own file"
                           : "");
        }
    }
    fmt::print(out_, "    engine {}\n", engine_text(engine, style_));
    if (!fio_version.empty()) {
        fmt::print(out_, "      peer {}, in turns with Penstock on the same file{}\n", fio_version,
                   several_ ? "s, a job each" : "");
    }
    fmt::print(out_, "\n");
    const std::string head = fmt::format(fmt::runtime(kLine), "test", "block", "QD", "by", "GB/s",
                                         several_ ? " " : std::string(report::kBarColumns + 2, ' '),
                                         "IOPS", "p50", "p99", "CPU", "runs");
    fmt::print(out_, "{}{}", several_ ? "    " : "", style_.paint(report::Colour::kBold, head));
    report::flush(out_);
    runs_ = options.repeats;
    peers_ = !fio_version.empty();
}

void BenchReport::rows(const std::vector<JobResult>& results) {
    for (const JobResult& result : results) {
        row(result);
    }
    if (several_) {
        const auto all = together_by_sum(results);
        const probe::RatioInterval interval = probe::ratio_interval(all);
        fmt::print(out_, "{:10}all / the sum of each alone: {:.3f}", "", interval.mean);
        if (all.size() > 1) {
            fmt::print(out_, ", 95 % interval {:.3f} to {:.3f}", interval.low, interval.high);
        }
        fmt::print(out_, "\n");
    }
    report::flush(out_);
}

void BenchReport::row(const JobResult& result) {
    for (const auto* samples : {&result.ours, &result.peers}) {
        if (!samples->empty()) {
            most_ = std::max(most_, probe::median(rates_of(*samples)));
        }
    }
    const auto bar_of = [&](const std::vector<Sample>& samples) {
        const double share = probe::median(rates_of(samples)) / most_;
        return several_ ? " " : fmt::format(" {} ", report::bar(share, report::kBarColumns));
    };
    fmt::print(out_, "{}{}", label(result, several_),
               sample_line(to_string(result.job.rw), base::format_bytes(result.job.block_bytes),
                           std::to_string(result.job.depth), result.ours, bar_of(result.ours)));
    if (!result.peers.empty()) {
        const std::string indent = several_ ? "    " : "";
        fmt::print(out_, "{}{}{}{}", indent,
                   sample_line("", "", "", result.peers, bar_of(result.peers)), indent,
                   ratio_line(result, style_));
    }
    for (const auto* samples : {&result.ours, &result.peers}) {
        if (samples->size() > 1) {
            worst_spread_ = std::max(worst_spread_, probe::half_range(rates_of(*samples)));
        }
    }
}

void BenchReport::foot(const std::vector<Target>& targets) {
    fmt::print(
        out_,
        "\nQD: queue depth, blocks at the device at once. GB/s: 10^9 bytes a second (GiB/s:\n"
        "0.931 times as many). p50, p99: time of one block at the device; of the whole\n"
        "call at QD 1 up to 64 KiB. CPU: processor seconds per GiB, user and system. Each\n"
        "figure is the median of {} runs; \"runs\" is half their range. --json also has\n"
        "p99.9.\n",
        runs_);
    if (peers_) {
        fmt::print(out_,
                   "The ratio is of bytes a second, each run of Penstock over the run of fio next\n"
                   "to it; above 1 Penstock is faster. Undecided: the interval contains 1.\n");
    }
    if (several_) {
        fmt::print(out_,
                   "[1], [2], ...: each alone. all: one transfer after another over all of them,\n"
                   "with as many bytes of each, so that the slowest sets the pace.\n");
    }
    for (const Target& target : targets) {
        if (!target.file.info().direct) {
            fmt::print(out_,
                       "\n{} {} went through the page cache ({}):\nthe figures measure memory "
                       "as much as the disk.\n",
                       style_.paint(report::Colour::kYellow, "Note:"), target.path,
                       target.file.info().reason);
        }
    }
    if (worst_spread_ > kNoisy) {
        fmt::print(
            out_,
            "\n{} the runs of one row differ by up to ±{:.0f} %: this disk (or what else runs\n"
            "here) swings, and smaller differences mean nothing. More runs: --repeats 10\n",
            style_.paint(report::Colour::kYellow, "Note:"), 100 * worst_spread_);
    }
    report::flush(out_);
}

nlohmann::json bench_json(std::span<const std::string> command, const std::vector<Target>& targets,
                          const EngineDescription& engine, const std::string& fio_version,
                          const std::vector<JobResult>& results) {
    nlohmann::json json{{"command", command_json(command)},
                        {"environment", report::machine_json()},
                        {"targets", nlohmann::json::array()},
                        {"engine", report::engine_json(engine)},
                        {"jobs", nlohmann::json::array()}};
    for (const Target& target : targets) {
        json["targets"].push_back(report::target_json(target));
    }
    if (targets.size() == 1) {
        json["target"] = json["targets"][0];
    }
    if (!fio_version.empty()) {
        json["environment"]["fio"] = fio_version;
    }
    for (auto row = results.begin(); row != results.end(); ++row) {
        json["jobs"].push_back(job_json(*row, targets));
        if (row->targets.size() > 1) {  // directly after those of each alone
            const std::vector<JobResult> turn(
                row - static_cast<std::ptrdiff_t>(row->targets.size()), row + 1);
            json["jobs"].back()["ratio_to_sum_of_each"] = interval_json(together_by_sum(turn));
        }
    }
    return json;
}

}  // namespace penstock::cli
