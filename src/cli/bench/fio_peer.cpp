// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/fio_peer.hpp"

#include "base/histogram.hpp"
#include "report/interrupt.hpp"
#include "report/subprocess.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace penstock::cli {

namespace {

constexpr double kChoiceSeconds = 0.4;

Error fio_error(const std::string& message) {
    return {ErrorCode::kSystem, 0, "fio", {}, kNoOffset, message};
}

// Rejects names that fio would cut: a comment begins at these characters, in its arguments too.
void check_name(const std::string& path) {
    if (path.find_first_of(";#") != std::string::npos) {
        throw fio_error("the path " + path +
                        " has a ';' or a '#' in it, and fio takes what follows for a comment; for "
                        "--against fio name another folder, or a link to this one");
    }
}

}  // namespace

std::string fio_filename(const std::string& path) {
    std::string out;
    for (const char c : path) {
        if (c == ':' || c == '\\') {
            out += '\\';
        }
        out += c;
    }
    return out;
}

namespace {

std::vector<std::string> command(const std::string& engine, const JobSpec& job,
                                 const std::vector<const Target*>& targets, double seconds) {
    std::vector<std::string> argv{
        "fio",
        "--output-format=json+",  // with the buckets of its latencies
        "--eta=never",
        "--name=global",
        "--thread",
        "--group_reporting",
        fmt::format("--rw={}", to_string(job.rw)),
        fmt::format("--bs={}", job.block_bytes),
        fmt::format("--iodepth={}", job.depth),
        fmt::format("--ioengine={}", engine),
        "--time_based",
        fmt::format("--runtime={:.0f}ms", seconds * 1000),
        "--norandommap",
        "--randrepeat=0",
        "--invalidate=0",
        "--lat_percentiles=1",  // from submission on, as ours
        "--allow_file_create=0",
    };
    const bool ours =
        std::all_of(targets.begin(), targets.end(), [](const Target* t) { return t->ours; });
    if (!ours) {
        argv.emplace_back("--readonly");
    }
    for (const Target* target : targets) {
        check_name(target->path);
        argv.insert(argv.end(),
                    {"--name=job", fmt::format("--filename={}", fio_filename(target->path)),
                     fmt::format("--direct={}", target->file.info().direct ? 1 : 0),
                     fmt::format("--size={}", target->bytes / job.block_bytes * job.block_bytes)});
    }
    return argv;
}

// Merges its buckets (64 an octave) into ours.
std::vector<LatencyBucket> histogram(const nlohmann::json& bins) {
    std::map<std::int64_t, std::uint64_t> counts;
    for (const auto& [time, count] : bins.items()) {
        const std::size_t bucket = base::Histogram::bucket(std::stoll(time));
        counts[base::Histogram::upper_bound(bucket)] += count.get<std::uint64_t>();
    }
    std::vector<LatencyBucket> buckets;
    for (const auto& [upper_ns, requests] : counts) {
        buckets.push_back({upper_ns, requests});
    }
    return buckets;
}

Sample parse(const std::string& output, Rw rw) {
    const std::size_t brace = output.find('{');  // fio may put warnings before it
    const auto json = nlohmann::json::parse(brace == std::string::npos ? "" : output.substr(brace));
    const auto& job = json.at("jobs").at(0);
    const auto& figures = job.at(is_write(rw) ? "write" : "read");
    const auto& latency = figures.at("lat_ns");
    const double job_s = job.at("job_runtime").get<double>() / 1000;
    Sample sample;
    sample.side = "fio";
    sample.seconds = figures.at("runtime").get<double>() / 1000;
    sample.bytes = figures.at("io_bytes").get<std::uint64_t>();
    sample.operations = figures.at("total_ios").get<std::uint64_t>();
    sample.cpu_s =
        (job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>()) / 100 * job_s;
    if (latency.contains("percentile")) {
        const auto& percentiles = latency.at("percentile");
        sample.p50_ns = percentiles.at("50.000000").get<std::int64_t>();
        sample.p99_ns = percentiles.at("99.000000").get<std::int64_t>();
        sample.p999_ns = percentiles.at("99.900000").get<std::int64_t>();
    }
    if (latency.contains("bins")) {
        sample.histogram = histogram(latency.at("bins"));
    }
    return sample;
}

std::string tail(const std::string& text) {
    constexpr std::size_t kMost = 400;
    return text.size() > kMost ? "..." + text.substr(text.size() - kMost) : text;
}

}  // namespace

FioPeer::FioPeer(report::Progress& progress) : progress_(progress) {
    const report::Finished found =
        report::run_program({"fio", "--version"}, report::check_interrupt);
    if (found.status != 0) {
        throw fio_error(
            "--against fio was asked for, and fio is not installed (or does not start); install "
            "it: "
            "sudo apt-get install fio   (Fedora, RHEL: sudo dnf install fio)");
    }
    version_ = found.output.substr(0, found.output.find('\n'));
}

void FioPeer::choose(const JobSpec& job, const std::vector<const Target*>& targets) {
    constexpr std::array<const char*, 2> kEngines{"io_uring", "libaio"};
    double best = 0;
    std::string refusal;
    engine_.clear();
    for (const char* engine : kEngines) {
        try {
            const double rate = run_with(engine, job, targets, kChoiceSeconds).bytes_per_s();
            if (rate > best) {
                best = rate;
                engine_ = engine;
            }
        } catch (const Error& e) {
            refusal = e.what();  // io_uring may be forbidden here; then libaio is the peer
        }
    }
    if (engine_.empty()) {
        throw fio_error(refusal);
    }
}

Sample FioPeer::run(const JobSpec& job, const std::vector<const Target*>& targets, double seconds) {
    return run_with(engine_, job, targets, seconds);
}

Sample FioPeer::run_with(const std::string& engine, const JobSpec& job,
                         const std::vector<const Target*>& targets, double seconds) {
    const std::vector<std::string> argv = command(engine, job, targets, seconds);
    const report::Finished finished = report::run_program(argv, [&] {
        report::check_interrupt();
        progress_.show("fio, " + engine);
    });
    report::check_interrupt();
    const std::string told = fmt::format("{}{}", tail(finished.output), tail(finished.errors));
    if (finished.status != 0) {
        throw fio_error(
            fmt::format("fio ({}) ended with status {}: {}", engine, finished.status, told));
    }
    try {
        Sample sample = parse(finished.output, job.rw);
        if (sample.bytes == 0 || sample.seconds <= 0) {
            throw fio_error(fmt::format("fio ({}) moved nothing: {}", engine, told));
        }
        return sample;
    } catch (const nlohmann::json::exception& e) {
        throw fio_error(fmt::format("fio ({}) gave no JSON that is understood ({}): {}", engine,
                                    e.what(), told));
    }
}

}  // namespace penstock::cli
