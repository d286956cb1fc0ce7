// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_report.hpp"

#include "base/units.hpp"
#include "cli/environment.hpp"
#include "cli/statistics.hpp"
#include "os/limits.hpp"

#include <fmt/format.h>

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
    return median(values(samples, get));
}

std::string latency(double nanoseconds) {
    return nanoseconds > 0 ? base::format_duration(static_cast<std::int64_t>(nanoseconds)) : "-";
}

// 812, 15.2 k, 1.21 M
std::string count(double value) {
    if (value >= 999.5e3) {
        return fmt::format("{:.2f} M", value / 1e6);
    }
    return value >= 9999.5 ? fmt::format("{:.1f} k", value / 1e3) : fmt::format("{:.0f}", value);
}

// Three digits from 0.01 up: 0.0081, 0.731, 7.02, 14.1
std::string rate(double value) {
    const int digits =
        value > 0 ? std::clamp(2 - static_cast<int>(std::floor(std::log10(value))), 0, 4) : 2;
    return fmt::format("{:.{}f}", value, digits);
}

std::string spread(const std::vector<double>& rates) {
    return rates.size() < 2 ? "-" : fmt::format("±{:.1f} %", 100 * half_range(rates));
}

constexpr const char* kLine =
    "{:<9} {:>7} {:>5}  {:<8} {:>7} {:>7}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}\n";

std::string sample_line(const std::string& kind, const std::string& block, const std::string& depth,
                        const std::vector<Sample>& samples) {
    const auto bytes = values(samples, [](const Sample& s) { return s.bytes_per_s(); });
    return fmt::format(fmt::runtime(kLine), kind, block, depth, samples.front().side,
                       rate(median(bytes) / 1e9), rate(median(bytes) / (1 << 30)),
                       count(middle(samples, [](const Sample& s) { return s.operations_per_s(); })),
                       latency(middle(samples, [](const Sample& s) { return s.p50_ns; })),
                       latency(middle(samples, [](const Sample& s) { return s.p99_ns; })),
                       latency(middle(samples, [](const Sample& s) { return s.p999_ns; })),
                       rate(middle(samples, [](const Sample& s) { return s.cpu_s_per_gib(); })),
                       spread(bytes));
}

std::vector<double> ratios(const JobResult& result) {
    std::vector<double> all;
    for (std::size_t i = 0; i < std::min(result.ours.size(), result.peers.size()); ++i) {
        all.push_back(result.ours[i].bytes_per_s() / result.peers[i].bytes_per_s());
    }
    return all;
}

std::string ratio_line(const JobResult& result) {
    const auto all = ratios(result);
    const RatioInterval interval = ratio_interval(all);
    std::string text =
        fmt::format("{:25}  Penstock / fio ({}): {:.3f}", "", result.peer_engine, interval.mean);
    if (all.size() > 1) {
        const bool told = interval.low > 1 || interval.high < 1;
        text += fmt::format("   pairs {:.3f} to {:.3f}, 95 % interval {:.3f} to {:.3f}{}",
                            interval.min, interval.max, interval.low, interval.high,
                            told ? "" : "; no difference shown");
    }
    return text + "\n";
}

nlohmann::json sample_json(const Sample& sample) {
    return {{"side", sample.side},
            {"seconds", sample.seconds},
            {"bytes", sample.bytes},
            {"operations", sample.operations},
            {"cpu_s", sample.cpu_s},
            {"bytes_per_s", sample.bytes_per_s()},
            {"operations_per_s", sample.operations_per_s()},
            {"cpu_s_per_gib", sample.cpu_s_per_gib()},
            {"latency_ns",
             {{"p50", sample.p50_ns}, {"p99", sample.p99_ns}, {"p99.9", sample.p999_ns}}}};
}

nlohmann::json job_json(const JobResult& result) {
    nlohmann::json json{{"rw", to_string(result.job.rw)},
                        {"block_bytes", result.job.block_bytes},
                        {"depth", result.job.depth},
                        {"samples", nlohmann::json::array()}};
    for (std::size_t i = 0; i < result.ours.size(); ++i) {
        json["samples"].push_back(sample_json(result.ours[i]));
        if (i < result.peers.size()) {
            json["samples"].push_back(sample_json(result.peers[i]));
        }
    }
    const auto bytes = values(result.ours, [](const Sample& s) { return s.bytes_per_s(); });
    json["median_bytes_per_s"] = median(bytes);
    json["half_range"] = half_range(bytes);
    if (!result.peers.empty()) {
        const RatioInterval interval = ratio_interval(ratios(result));
        json["peer"] = {{"name", "fio"}, {"ioengine", result.peer_engine}};
        json["ratio"] = {{"mean", interval.mean}, {"min", interval.min}, {"max", interval.max}};
        if (result.peers.size() > 1) {
            json["ratio"]["ci95"] = {interval.low, interval.high};
        }
    }
    return json;
}

}  // namespace

void BenchReport::head(const BenchOptions& options, const Target& target,
                       const EngineDescription& engine, const std::string& fio_version) {
    fmt::print(out_, "Penstock {} bench of {}\n", PENSTOCK_VERSION, options.path);
    fmt::print(out_, "  disk     {}\n", target_text(target));
    if (target.ours) {
        fmt::print(out_, "  file     {}, {} of random bytes; removed at the end\n", target.path,
                   base::format_bytes(target.bytes));
    } else {
        fmt::print(out_, "  file     {}, {} of it; only read{}\n", target.path,
                   base::format_bytes(target.bytes),
                   options.rws.empty()
                       ? ". Write tests need a folder: bench then makes its own file"
                       : "");
    }
    fmt::print(out_, "  engine   {}{}{}, kernel {}\n", engine.backend,
               engine.detail.empty() ? "" : ": ", engine.detail, os::kernel_release());
    for (const std::string& refusal : engine.refusals) {
        fmt::print(out_, "           {}\n", refusal);
    }
    if (!fio_version.empty()) {
        fmt::print(out_, "  peer     {}, in turns with Penstock on the same file\n", fio_version);
    }
    fmt::print(out_, "\n");
    fmt::print(out_, fmt::runtime(kLine), "test", "block", "depth", "by", "GB/s", "GiB/s", "IOPS",
               "p50", "p99", "p99.9", "CPU s/GiB", "runs");
    std::fflush(out_);
    runs_ = options.repeats;
    peers_ = !fio_version.empty();
}

void BenchReport::row(const JobResult& result) {
    fmt::print(out_, "{}",
               sample_line(to_string(result.job.rw), base::format_bytes(result.job.block_bytes),
                           std::to_string(result.job.depth), result.ours));
    if (!result.peers.empty()) {
        fmt::print(out_, "{}{}", sample_line("", "", "", result.peers), ratio_line(result));
    }
    for (const auto* samples : {&result.ours, &result.peers}) {
        if (samples->size() > 1) {
            worst_spread_ = std::max(
                worst_spread_,
                half_range(values(*samples, [](const Sample& s) { return s.bytes_per_s(); })));
        }
    }
    std::fflush(out_);
}

void BenchReport::foot(const Target& target) {
    fmt::print(
        out_,
        "\nGB/s: 10^9 bytes a second, GiB/s: 2^30. p50, p99, p99.9: time of one block at the "
        "device\n(depth 1 up to 64 KiB: of the whole call). CPU s/GiB: processor seconds a GiB, "
        "user and system.\nEach figure is the median of {} runs; \"runs\" is half their range.\n",
        runs_);
    if (peers_) {
        fmt::print(
            out_,
            "The ratio is of bytes a second, each run of Penstock by the run of fio beside it; "
            "above 1 Penstock\nis faster.\n");
    }
    if (!target.file.info().direct) {
        fmt::print(out_,
                   "\nNote: these went through the page cache ({}):\nthe figures tell of memory as "
                   "much as of the disk.\n",
                   target.file.info().reason);
    }
    if (worst_spread_ > kNoisy) {
        fmt::print(
            out_,
            "\nNote: the runs of one row differ by up to ±{:.0f} %: this disk (or what else runs "
            "here) swings, and\nsmaller differences mean nothing. More runs: --repeats 10\n",
            100 * worst_spread_);
    }
    std::fflush(out_);
}

nlohmann::json bench_json(std::span<const std::string> command, const Target& target,
                          const EngineDescription& engine, const std::string& fio_version,
                          const std::vector<JobResult>& results) {
    nlohmann::json words = nlohmann::json::array({"penstock"});
    for (const std::string& word : command) {
        words.push_back(word);
    }
    nlohmann::json json{{"command", words},
                        {"environment", machine_json()},
                        {"target", target_json(target)},
                        {"engine", engine_json(engine)},
                        {"jobs", nlohmann::json::array()}};
    if (!fio_version.empty()) {
        json["environment"]["fio"] = fio_version;
    }
    for (const JobResult& result : results) {
        json["jobs"].push_back(job_json(result));
    }
    return json;
}

}  // namespace penstock::cli
