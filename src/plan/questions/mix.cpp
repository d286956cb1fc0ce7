// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/questions/pulses.hpp"
#include "plan/verb.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kVerb = "mix";
constexpr std::size_t kPoints = 240;  // of a series

struct MixWords {
    std::string jobs;
    std::optional<double> length;
};

constexpr std::array<Field<MixWords>, 2> kFields{{
    {"jobs", Amount::kDocument, &MixWords::jobs, "The jobs, in JSON; see below"},
    {"length", Amount::kSeconds, &MixWords::length,
     "The time that is looked at, in place of the file's (default: 24h)"},
}};

constexpr const char* kDetails =
    R"(What several jobs on one storage read and write together: the peak, the mean,
percentiles by time, and a picture of the sum.

A file of jobs is JSON (YAML too, with the Python package and PyYAML):
  {"title": "a cluster", "length": "4h", "jobs": [
    {"kind": "train", "model": "resnet50", "accelerators": 64},
    {"kind": "checkpoint", "bytes": "2450GB", "every": "2h", "within": "6min"},
    {"kind": "restore", "bytes": "2450GB", "within": "5min", "copies": 16},
    {"kind": "inference", "bytes": "140GB", "within": "1min", "every": "30min"}]}

Kinds: train, evaluation, checkpoint, restore, preparation, inference. Members:
name, model, preset, accelerator, accelerators, utilisation, samples_per_second,
bytes_per_sample (as for train); bytes, write_bytes, copies; start, length,
every, within.

Examples:
  penstock plan mix jobs.json
  penstock plan mix jobs.json --length 24h --json mix.json)";

Answer ask_mix(const std::vector<Word>& words) {
    const auto given = options_of(kVerb, std::span<const Field<MixWords>>(kFields), words);
    if (given.jobs.empty()) {
        refuse(kVerb, "expected a file of jobs; penstock plan mix --help shows one");
    }
    MixOptions options = mix_of_json(given.jobs);
    options.length = given.length.value_or(options.length);
    return mix(options);
}

// A stretch of time in which no rate changes.
struct Step {
    double seconds = 0;
    double read = 0;
    double write = 0;
};

class Sum {
public:
    Sum(const std::vector<Pulse>& pulses, double length) {
        std::vector<Edge> edges;
        for (const Pulse& pulse : pulses) {
            edges.push_back({pulse.start, pulse.read, pulse.write, 1});
            edges.push_back({pulse.end, -pulse.read, -pulse.write, -1});
        }
        std::sort(edges.begin(), edges.end(),
                  [](const Edge& a, const Edge& b) { return a.at < b.at; });
        Step now;
        int active = 0;
        double at = 0;
        for (const Edge& edge : edges) {
            const double until = std::min(edge.at, length);
            if (until > at) {
                add(now, at, until);
                at = until;
            }
            active += edge.count;
            now.read = active == 0 ? 0 : std::max(0.0, now.read + edge.read);
            now.write = active == 0 ? 0 : std::max(0.0, now.write + edge.write);
        }
        if (at < length) {
            add(now, at, length);
        }
    }

    [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }
    [[nodiscard]] const std::vector<double>& starts() const { return starts_; }

    // The rate that the sum is at or below for this share of the time.
    [[nodiscard]] double percentile(double share, double length) const {
        std::vector<std::pair<double, double>> rates;  // rate, seconds
        for (const Step& step : steps_) {
            rates.emplace_back(step.read + step.write, step.seconds);
        }
        std::sort(rates.begin(), rates.end());
        double seen = 0;
        for (const auto& [rate, seconds] : rates) {
            seen += seconds;
            if (seen >= share * length * (1 - 1e-12)) {
                return rate;
            }
        }
        return rates.empty() ? 0 : rates.back().first;
    }

private:
    struct Edge {
        double at = 0;
        double read = 0;
        double write = 0;
        int count = 0;
    };
    void add(const Step& now, double from, double until) {
        starts_.push_back(from);
        steps_.push_back({until - from, now.read, now.write});
    }

    std::vector<Step> steps_;
    std::vector<double> starts_;
};

template <typename Rate>
Series series_of(const Sum& sum, double length, const char* name, const char* label,
                 const Rate& rate) {
    Series out{name, label, "by time", "s", "the largest in each column", "B/s", {}, {}};
    out.x.resize(kPoints);
    out.y.resize(kPoints);
    const double width = length / static_cast<double>(kPoints);
    for (std::size_t i = 0; i < kPoints; ++i) {
        out.x[i] = static_cast<double>(i) * width;
    }
    for (std::size_t i = 0; i < sum.steps().size(); ++i) {
        const double from = sum.starts()[i];
        const double until = from + sum.steps()[i].seconds;
        const auto first = std::min(kPoints - 1, static_cast<std::size_t>(from / width));
        for (std::size_t at = first; at < kPoints && out.x[at] < until; ++at) {
            out.y[at] = std::max(out.y[at], rate(sum.steps()[i]));
        }
    }
    return out;
}

double total(const Step& step) {
    return step.read + step.write;
}

template <typename Rate>
double peak(const Sum& sum, const Rate& rate) {
    double most = 0;
    for (const Step& step : sum.steps()) {
        most = std::max(most, rate(step));
    }
    return most;
}

void add_figures(Answer& out, const Sum& sum, const std::vector<JobRates>& jobs, double length) {
    const auto reads = [](const Step& step) { return step.read; };
    const auto writes = [](const Step& step) { return step.write; };
    add_figure(out, {"peak_bytes_per_second",
                     "peak of the sum",
                     peak(sum, total),
                     "B/s",
                     "[the largest sum of all jobs at one time]",
                     {}});
    add_figure(out, {"peak_read_bytes_per_second",
                     "peak of reads",
                     peak(sum, reads),
                     "B/s",
                     "[the largest sum of reads at one time]",
                     {}});
    add_figure(out, {"peak_write_bytes_per_second",
                     "peak of writes",
                     peak(sum, writes),
                     "B/s",
                     "[the largest sum of writes at one time]",
                     {}});
    double read = 0;
    double written = 0;
    for (const Step& step : sum.steps()) {
        read += step.read * step.seconds;
        written += step.write * step.seconds;
    }
    add_figure(out, {"read_bytes", "read in all", read, "B", "[sum of reads by time]", {}});
    add_figure(out, {"write_bytes", "written in all", written, "B", "[sum of writes by time]", {}});
    add_figure(out, {"mean_bytes_per_second",
                     "mean of the sum",
                     (read + written) / length,
                     "B/s",
                     "(read_bytes + write_bytes) / length",
                     {input_of(out, "read_bytes"),
                      input_of(out, "write_bytes"),
                      {"length", length, "s", std::string(kGiven)}}});
    constexpr std::array<std::pair<const char*, double>, 3> kShares{
        {{"50", 0.5}, {"90", 0.9}, {"99", 0.99}}};
    for (const auto& [name, share] : kShares) {
        add_figure(out, {fmt::format("p{}_bytes_per_second", name),
                         fmt::format("at or below it {} % of the time", name),
                         sum.percentile(share, length),
                         "B/s",
                         fmt::format("[percentile {} of the sum, by time]", name),
                         {}});
    }
    double aligned = 0;
    std::vector<Input> inputs;
    for (const JobRates& job : jobs) {
        aligned += job.read + job.write;
        inputs.push_back({job.name, job.read + job.write, "B/s", std::string(kComputed)});
    }
    add_figure(out, {"aligned_bytes_per_second", "were all bursts to meet", aligned, "B/s",
                     "[sum of the peaks of the jobs]", std::move(inputs)});
}

Table table_of(const std::vector<JobRates>& jobs) {
    Table out{"jobs",
              "",
              {{"name", "job", ""},
               {"kind", "kind", ""},
               {"read_bytes_per_second", "reads", "B/s"},
               {"write_bytes_per_second", "writes", "B/s"},
               {"busy_share", "of the time", "share"}},
              {}};
    for (const JobRates& job : jobs) {
        out.rows.push_back(row_of(job.name, job.kind, job.read, job.write, job.busy_share));
    }
    return out;
}

}  // namespace

Answer mix(const MixOptions& options) {
    check_amount(kVerb, "length", options.length, Amount::kSeconds);
    std::vector<Pulse> pulses;
    const std::vector<JobRates> jobs = pulses_of(options, pulses);
    const Sum sum(pulses, options.length);
    Answer out;
    out.verb = kVerb;
    out.title = fmt::format("{}: {} job{} in {}",
                            options.title.empty() ? "A mix" : format::escaped(options.title),
                            jobs.size(), jobs.size() == 1 ? "" : "s", shown(options.length, "s"));
    add_figures(out, sum, jobs, options.length);
    out.tables.push_back(table_of(jobs));
    out.series.push_back(series_of(sum, options.length, "sum", "reads and writes", total));
    const bool both = out.at("read_bytes").value > 0 && out.at("write_bytes").value > 0;
    if (both) {
        out.series.push_back(series_of(sum, options.length, "read", "reads",
                                       [](const Step& step) { return step.read; }));
        out.series.push_back(series_of(sum, options.length, "write", "writes",
                                       [](const Step& step) { return step.write; }));
    }
    out.notes.emplace_back(
        "Bursts are spread evenly over the time that their job allows. Storage that is sized for "
        "the mean stalls jobs in each burst; sized for the peak, it is idle between them; were all "
        "bursts to meet, it would need the last figure.");
    return out;
}

VerbRow mix_verb() {
    return {{std::string(kVerb), "What several jobs read and write together", kDetails,
             infos_of(std::span<const Field<MixWords>>(kFields))},
            ask_mix};
}

}  // namespace penstock::plan
