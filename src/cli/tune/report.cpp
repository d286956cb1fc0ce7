// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/report.hpp"

#include "base/text/units.hpp"
#include "cli/bench/report.hpp"
#include "cli/tune/paste.hpp"
#include "probe/statistics.hpp"
#include "report/environment.hpp"
#include "report/flush.hpp"
#include "report/style.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

constexpr const char* kTuneLine = "{:<29} {} {:>5} {} {:>5} {}\n";
constexpr std::size_t kRatioColumns = 16;  // "1.21 (1.15-1.28)"

double median_rate(const std::vector<Sample>& samples) {
    std::vector<double> rates;
    for (const Sample& sample : samples) {
        rates.push_back(sample.bytes_per_s());
    }
    return rates.empty() ? 0 : probe::median(rates);
}

std::string rate_text(const std::vector<Sample>& samples) {
    return samples.empty() ? "-" : fmt::format("{:.3g}", median_rate(samples) / 1e9);
}

// "1.21 (1.15-1.28)", or "1.21 (?)" if there are too few turns to say.
std::string ratio_text(const TuneSearch& search, std::size_t candidate, Goal goal,
                       const report::Style& style) {
    const probe::RatioInterval ratio = search.ratio_of(candidate, goal);
    const std::size_t rounds = search.candidates()[candidate].entries.size();
    if (candidate == 0 || rounds == 0) {
        return fmt::format("{:>{}}", candidate == 0 ? "1" : "-", kRatioColumns);
    }
    constexpr double kTooWide = 10;
    if (rounds < 3 || ratio.high > kTooWide * ratio.low) {
        return fmt::format("{:>{}}", fmt::format("{:.2f} (?)", ratio.mean), kRatioColumns);
    }
    return style.paint(
        report::colour_of_ratio(ratio.low, ratio.high),
        fmt::format("{:>{}}",
                    fmt::format("{:.2f} ({:.2f}-{:.2f})", ratio.mean, ratio.low, ratio.high),
                    kRatioColumns));
}

// "512 KiB x 128, 2 ch, io_uring": the name of a row.
std::string row_name(const TuneSettings& settings, bool defaults) {
    std::string name = to_string(settings);
    constexpr std::string_view kLong = " channels";
    if (const std::size_t at = name.find(kLong); at != std::string::npos) {
        name.replace(at, kLong.size(), " ch");
    }
    return defaults ? name + " (defaults)" : name;
}

// Sorted by the goal that settings are chosen by: the defaults, then the best first.
std::vector<std::size_t> in_order(const TuneSearch& search) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < search.candidates().size(); ++i) {
        order.push_back(i);
    }
    const Goal goal = search.goals().back();
    std::stable_sort(order.begin() + 1, order.end(), [&](std::size_t a, std::size_t b) {
        return search.ratio_of(a, goal).mean > search.ratio_of(b, goal).mean;
    });
    return order;
}

void print_table(std::FILE* out, const TuneResult& result) {
    const TuneSearch& search = result.search;
    const report::Style style(out);
    const auto right = [](const char* text) { return fmt::format("{:>{}}", text, kRatioColumns); };
    fmt::print(out, "{}",
               style.paint(report::Colour::kBold,
                           fmt::format(fmt::runtime(kTuneLine), "block x depth",
                                       std::string(report::kBarColumns, ' '), "read",
                                       right("to defaults"), "write", right("to defaults"))));
    const auto rate_of = [&](const CandidateSamples& samples) {
        return median_rate(result.options.read ? samples.read : samples.write);
    };
    double most = 0;
    for (const CandidateSamples& samples : result.samples) {
        most = std::max(most, rate_of(samples));
    }
    for (const std::size_t i : in_order(search)) {
        const CandidateSamples& samples = result.samples[i];
        const std::size_t slices = samples.read.size() + samples.write.size();
        if (slices == 0) {
            continue;
        }
        fmt::print(out, fmt::runtime(kTuneLine), row_name(search.candidates()[i].settings, i == 0),
                   report::bar(most > 0 ? rate_of(samples) / most : 0, report::kBarColumns),
                   rate_text(samples.read),
                   samples.read.empty() ? right("-") : ratio_text(search, i, Goal::kRead, style),
                   rate_text(samples.write),
                   samples.write.empty() ? right("-") : ratio_text(search, i, Goal::kWrite, style));
    }
    fmt::print(
        out,
        "\nDepth: blocks at the device at once; ch: channels. Read, write: GB/s (10^9 bytes\n"
        "a second), median; the bar is of {}. To defaults: mean ratio within turns, in\n"
        "brackets its 95 % interval (?: too few turns to say). The best of many is high\n"
        "by chance, so this table does not decide; fresh runs do:\n\n",
        result.options.read ? "reads" : "writes");
}

nlohmann::ordered_json settings_json(const TuneSettings& settings) {
    return {{"block_bytes", settings.block_bytes},
            {"depth", settings.depth},
            {"channels", settings.channels},
            {"backend", name_of(settings.backend)}};
}

nlohmann::ordered_json ratio_json(const probe::RatioInterval& ratio, std::size_t rounds) {
    nlohmann::ordered_json json{{"mean", ratio.mean}, {"min", ratio.min}, {"max", ratio.max}};
    if (rounds > 1) {
        json["ci95"] = {ratio.low, ratio.high};
    }
    return json;
}

nlohmann::ordered_json job_json(const TuneResult& result, std::size_t candidate, bool write) {
    const auto& slices = write ? result.samples[candidate].write : result.samples[candidate].read;
    nlohmann::ordered_json json{{"rw", write ? "write" : "read"}};
    json.update(settings_json(result.search.candidates()[candidate].settings));
    json["defaults"] = candidate == 0;
    json["paths"] = nlohmann::ordered_json::array({result.target.path});
    json["samples"] = nlohmann::ordered_json::array();
    for (const Sample& sample : slices) {
        json["samples"].emplace_back(sample_json(sample));
    }
    json["median_bytes_per_s"] = median_rate(slices);
    json["ratio_to_defaults"] =
        ratio_json(result.search.ratio_of(candidate, write ? Goal::kWrite : Goal::kRead),
                   result.search.candidates()[candidate].entries.size());
    return json;
}

nlohmann::ordered_json verdict_json(const TuneSearch& search, Goal goal) {
    const GoalVerdict& verdict = search.verdict(goal);
    constexpr std::array<const char*, 3> kKinds{"better", "no_difference", "not_shown"};
    nlohmann::ordered_json json{{"goal", to_string(goal)},
                                {"verdict", kKinds[static_cast<std::size_t>(verdict.kind)]}};
    json["best_rival"] = settings_json(search.candidates()[verdict.candidate].settings);
    json["ratio_to_defaults"] = ratio_json(verdict.ratio, verdict.rounds);
    json["rounds"] = verdict.rounds;
    return json;
}

}  // namespace

void print_tune_head(std::FILE* out, const TuneOptions& options, const Target& target,
                     const EngineDescription& engine) {
    fmt::print(out, "Penstock {} tune of {}\n", PENSTOCK_VERSION, options.path);
    fmt::print(out, "  disk     {}\n", report::target_text(target));
    fmt::print(out, "  file     {}, {}; {}\n", target.path, base::format_bytes(target.bytes),
               target.ours ? "removed at the end" : "only read");
    if (target.ours) {
        fmt::print(out, "  writes   {}\n",
                   options.write ? fmt::format("that file over and over, at most {} in all "
                                               "(--write-limit)",
                                               base::format_bytes(options.write_limit_bytes))
                                 : std::string("that file once"));
    }
    fmt::print(out, "  engine   {}\n", engine_text(engine, report::Style(out)));
    fmt::print(out, "  time     {:.0f} s at most (--seconds)\n\n", options.seconds);
    report::flush(out);
}

std::string verdict_text(const TuneSearch& search, Goal goal, double gain_min) {
    const GoalVerdict& verdict = search.verdict(goal);
    const std::string rival = to_string(search.candidates()[verdict.candidate].settings);
    const std::string interval =
        fmt::format("{:.2f} to {:.2f}", verdict.ratio.low, verdict.ratio.high);
    const std::string head = fmt::format("  {:<9}", to_string(goal));
    if (verdict.kind == GoalVerdict::Kind::kBetter) {
        return head + fmt::format("{}: {:.2f} times the defaults (surely {}, {} turns)", rival,
                                  verdict.ratio.mean, interval, verdict.rounds);
    }
    const std::string none = head +
                             "no difference found: the defaults are as good as anything "
                             "tried\n           ";
    if (verdict.candidate == 0 || verdict.rounds < 2) {
        return none + "(too few turns fitted the time to say more)";
    }
    if (verdict.kind == GoalVerdict::Kind::kSame) {
        return none + fmt::format(
                          "(the best rival, {}: {} times the defaults, under the gain of "
                          "{:g} % that counts)",
                          rival, interval, 100 * gain_min);
    }
    return none + fmt::format(
                      "(the best rival, {}: {} times; the rate swings too much to tell "
                      "more apart in this time)",
                      rival, interval);
}

void print_tune_result(std::FILE* out, const TuneResult& result) {
    print_table(out, result);
    const TuneSearch& search = result.search;
    for (const Goal goal : search.goals()) {
        fmt::print(out, "{}\n", verdict_text(search, goal, result.options.gain_percent / 100));
    }
    if (!result.why_ended.empty()) {
        fmt::print(out, "  {}\n", result.why_ended);
    }
    const TuneSettings& choice = search.choice();
    const bool write = !result.options.read;
    fmt::print(
        out, "\nSettings: {}{}\n", to_string(choice),
        choice == search.candidates()[0].settings ? ", the defaults: nothing has to be set" : "");
    if (result.options.read && result.target.file.info().direct) {
        const std::string gaps = fmt::format(
            "Gaps: a small request costs this disk as much as {} more in one request; "
            "fewer bytes between two extents of a list are read too (gap_bytes).",
            base::format_bytes(result.defaults.gap_bytes));
        fmt::print(out, "{}\n", report::Style(out).wrap(gaps, 0));
    }
    if (result.gpu != nullptr) {
        fmt::print(out, "{}\n", report::Style(out).wrap(gpu_ways_text(*result.gpu) + ".", 0));
    }
    const std::string& written = result.options.output;
    fmt::print(
        out, "\nPenstock: {}\n{}\n",
        written.empty()
            ? "Engine(options=\"FILE\") takes this file (-o FILE writes it)"
            : fmt::format("Engine(options=\"{0}\") takes the file {0}, which holds:", written),
        options_json(choice, result.defaults, result.about).dump(2));
    fmt::print(out,
               "\nDeepSpeed: a section of its configuration (as measured through Penstock)\n{}\n",
               deepspeed_json(choice).dump(2));
    const std::string backend = choice.backend == BackendKind::kAuto
                                    ? result.engine.backend
                                    : std::string(name_of(choice.backend));
    fmt::print(out, "\nfio: the same work\n{}\n",
               fio_command(choice, backend, result.options.path, result.target.ours, write));
    if (!result.target.file.info().direct) {
        fmt::print(out,
                   "\nNote: these went through the page cache ({}):\nthe figures measure memory as "
                   "much as the disk.\n",
                   result.target.file.info().reason);
    }
    fmt::print(out, "\n{:.0f} s; {} written.\n", result.seconds,
               base::format_bytes(result.written_bytes));
    report::flush(out);
}

nlohmann::ordered_json tune_json(std::span<const std::string> command, const TuneResult& result) {
    const TuneSearch& search = result.search;
    nlohmann::ordered_json json{
        {"command", command_json(command)},
        {"environment", report::machine_json()},
        {"target", report::target_json(result.target)},
        {"targets", nlohmann::ordered_json::array({report::target_json(result.target)})},
        {"engine", report::engine_json(result.engine)},
        {"jobs", nlohmann::ordered_json::array()}};
    for (std::size_t i = 0; i < search.candidates().size(); ++i) {
        if (!result.samples[i].read.empty()) {
            json["jobs"].push_back(job_json(result, i, false));
        }
        if (!result.samples[i].write.empty()) {
            json["jobs"].push_back(job_json(result, i, true));
        }
    }
    nlohmann::ordered_json& tune = json["tune"];
    tune["seconds"] = result.seconds;
    tune["written_bytes"] = result.written_bytes;
    tune["gain_min"] = result.options.gain_percent / 100;
    tune["verdicts"] = nlohmann::ordered_json::array();
    for (const Goal goal : search.goals()) {
        tune["verdicts"].push_back(verdict_json(search, goal));
    }
    tune["choice"] = settings_json(search.choice());
    tune["options"] = options_json(search.choice(), result.defaults, result.about);
    tune["deepspeed"] = deepspeed_json(search.choice());
    if (result.gpu != nullptr) {
        tune["gpu"] = gpu_ways_json(*result.gpu);
    }
    return json;
}

}  // namespace penstock::cli
