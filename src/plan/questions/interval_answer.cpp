// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/verb.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kInterval = "interval";
constexpr double kHourSeconds = 3600;
constexpr double kLeastSeconds = 1e-9;  // of an interval
constexpr double kMostSeconds = 1e15;
constexpr int kPoints = 61;    // of the curve
constexpr double kReach = 20;  // it goes from a 20th of the best interval to 20 times it

constexpr std::array<Field<IntervalOptions>, 12> kFields{{
    {"mtbf", Amount::kSeconds, &IntervalOptions::mtbf,
     "Mean time between failures of one node: 30d, 50000h"},
    {"nodes", Amount::kCount, &IntervalOptions::nodes, "How many (default: 1)"},
    {"accelerator_mtbf", Amount::kSeconds, &IntervalOptions::accelerator_mtbf,
     "Mean time between failures of one accelerator: 50000h"},
    {"accelerators", Amount::kCount, &IntervalOptions::accelerators, "How many (default: 1)"},
    {"save", Amount::kSeconds, &IntervalOptions::save,
     "From the beginning of a save until it is durable"},
    {"stall", Amount::kSeconds, &IntervalOptions::stall,
     "The part of --save in which training stops (default: all of it; less: an overlapped save)",
     true},
    {"slowdown", Amount::kShare, &IntervalOptions::slowdown,
     "Share of its speed that training loses during the rest of a save (default: 0)", true},
    {"restore", Amount::kSeconds, &IntervalOptions::restore,
     "Reading the last save (default: as long as --save)", true},
    {"downtime", Amount::kSeconds, &IntervalOptions::downtime,
     "After each failure, before restoring begins (default: 0)", true},
    {"interval", Amount::kSeconds, &IntervalOptions::interval,
     "One of your own, to see its goodput next to the best"},
    {"simulate", Amount::kCount, &IntervalOptions::simulate,
     "Simulate so many random failures, to check the goodput"},
    {"seed", Amount::kCount, &IntervalOptions::seed, "Of the simulation (default: 1)", true},
}};

constexpr const char* kDetails =
    R"(How long to compute between saves so that the most work is kept, from the time
between failures and what saving and restoring take. The interval is the exact
one for failures at random; Young's, Daly's and the availability optimum are
shown next to it, each with the share of time that is kept (goodput), and the
curve of that share.

An overlapped save stalls training for less than it takes to become durable
(--stall): shorter stalls pay, but a failure undoes what was not durable yet.

Examples:
  penstock plan interval --accelerator-mtbf 50000h --accelerators 16384 --save 60s
  penstock plan interval --mtbf 60d --nodes 512 --save 6min --restore 5min --downtime 10min
  penstock plan interval --mtbf 60d --nodes 512 --save 6min --stall 5s --slowdown 3%
  penstock plan interval --mtbf 1d --save 6min --simulate 1000000)";

Input given(const char* name, double value, const char* unit = "s") {
    return {name, value, unit, std::string(kGiven)};
}

Input given_unless_zero(const char* name, double value, const char* unit) {
    return {name, value, unit, std::string(value == 0 ? kDefault : kGiven)};
}

void add_mtbf(Answer& out, const IntervalOptions& options) {
    if (!options.mtbf && !options.accelerator_mtbf) {
        refuse(kInterval,
               "mtbf: expected --mtbf with --nodes, or --accelerator-mtbf with "
               "--accelerators, or both");
    }
    const Input node = given("mtbf", options.mtbf.value_or(0));
    const Input nodes = given("nodes", options.nodes, "");
    const Input accelerator = given("accelerator_mtbf", options.accelerator_mtbf.value_or(0));
    const Input accelerators = given("accelerators", options.accelerators, "");
    Figure figure{"mtbf_seconds", "time between failures of the job", 0, "s", "", {}};
    if (options.mtbf && options.accelerator_mtbf) {
        figure.value = 1 / (nodes.value / node.value + accelerators.value / accelerator.value);
        figure.formula = "1 / (nodes / mtbf + accelerators / accelerator_mtbf)";
        figure.inputs = {node, nodes, accelerator, accelerators};
    } else if (options.mtbf) {
        figure.value = node.value / nodes.value;
        figure.formula = "mtbf / nodes";
        figure.inputs = {node, nodes};
    } else {
        figure.value = accelerator.value / accelerators.value;
        figure.formula = "accelerator_mtbf / accelerators";
        figure.inputs = {accelerator, accelerators};
    }
    add_figure(out, std::move(figure));
}

FailureModel model_of(const Answer& out, const IntervalOptions& options) {
    FailureModel model;
    model.mtbf = out.at("mtbf_seconds").value;
    model.stall = options.stall.value_or(options.save);
    model.write = options.save - model.stall;
    model.slowdown = options.slowdown;
    model.restore = options.restore.value_or(options.save);
    model.downtime = options.downtime;
    return model;
}

struct Rule {
    const char* name;
    double interval;
    const char* formula;
    const char* source;
};

// Each gives the computing between saves; a rule that gives the period has had the cost taken off.
std::vector<Rule> rules_of(const FailureModel& model, double cost, double best) {
    const double small = cost / (2 * model.mtbf);
    const double root = std::sqrt(2 * cost * model.mtbf);
    const double daly =
        small < 1 ? root * (1 + std::sqrt(small) / 3 + small / 9) - cost : model.mtbf;
    const double other = model.mtbf + model.restore + model.downtime;
    const double available = std::sqrt(2 * other * cost + cost * cost);
    return {{"exact", best, "x * mtbf with (1 - x) * exp(x) = exp(-cost / mtbf)",
             "the minimum of the renewal formula: docs/plan.md"},
            {"young", root, "sqrt(2 * cost * mtbf)",
             "J. W. Young, A first order approximation to the optimum checkpoint interval (1974)"},
            {"daly", daly,
             "sqrt(2 * cost * mtbf) * (1 + sqrt(cost / (2 * mtbf)) / 3 + cost / (18 * mtbf)) - "
             "cost, or "
             "mtbf where cost >= 2 * mtbf",
             "J. T. Daly, A higher order estimate of the optimum checkpoint interval (2006)"},
            {"availability", available, "sqrt(2 * (mtbf + restore + downtime) * cost + cost ** 2)",
             "arXiv 2410.18124: the period is that plus the cost"}};
}

void add_rules(Answer& out, const FailureModel& model, double cost, double best, double least) {
    Table table{"rules",
                "What other rules give, and the goodput that follows",
                {{"rule", "rule", ""},
                 {"interval_seconds", "interval", "s"},
                 {"goodput", "goodput", "share"},
                 {"formula", "formula", "", true},
                 {"source", "source", "", true}},
                {}};
    for (const Rule& rule : rules_of(model, cost, best)) {
        const double interval =
            std::clamp(rule.interval, std::max(least, kLeastSeconds), kMostSeconds);
        table.rows.push_back(
            row_of(rule.name, interval, goodput(model, interval), rule.formula, rule.source));
    }
    out.tables.push_back(std::move(table));
}

void add_curve(Answer& out, const FailureModel& model, double best, double least) {
    Series curve{"goodput",
                 "Goodput over the interval",
                 "computing between saves",
                 "s",
                 "goodput",
                 "share",
                 {},
                 {}};
    const double begin = std::max({best / kReach, least, kLeastSeconds});
    const double end = std::min(std::max(best * kReach, begin * 2), kMostSeconds);
    for (int i = 0; i < kPoints; ++i) {
        const double at = begin * std::pow(end / begin, static_cast<double>(i) / (kPoints - 1));
        curve.x.push_back(at);
        curve.y.push_back(goodput(model, std::clamp(at, begin, kMostSeconds)));
    }
    out.series.push_back(std::move(curve));
}

void add_own(Answer& out, const FailureModel& model, const IntervalOptions& options, double best) {
    const double judged = options.interval.value_or(best);
    if (options.interval) {
        const Input own = given("interval", judged);
        add_figure(out, {"own_goodput",
                         "goodput of your interval",
                         goodput(model, judged),
                         "share",
                         "[the formula of goodput, with your interval]",
                         {own}});
        add_figure(out, {"own_loss",
                         "kept less than with the best",
                         1 - out.at("own_goodput").value / out.at("goodput").value,
                         "share",
                         "1 - own_goodput / goodput",
                         {input_of(out, "own_goodput"), input_of(out, "goodput")}});
    }
    if (options.simulate) {
        const SimulatedJob job =
            simulate_job(model, judged, static_cast<std::uint64_t>(*options.simulate),
                         static_cast<std::uint64_t>(options.seed));
        const std::vector<Input> inputs{given("interval_seconds", judged),
                                        given("simulate", *options.simulate, "failures"),
                                        given("seed", options.seed, "")};
        add_figure(out, {"simulated_goodput", "goodput of a simulation", job.goodput, "share",
                         "[computing that was kept, over all time, of a job with random failures]",
                         inputs});
        add_figure(out, {"simulated_lost", "undone by failures", job.lost, "share",
                         "[time from the last durable save to the failure]", inputs});
        add_figure(out, {"simulated_saving", "spent on saves", job.saving, "share",
                         "[stalls, and what writing slowed down]", inputs});
        add_figure(out, {"simulated_restoring", "spent on restores", job.restoring, "share",
                         "[downtimes and restores]", inputs});
    }
}

Answer ask_interval(const std::vector<Word>& words) {
    return interval(options_of(kInterval, std::span<const Field<IntervalOptions>>(kFields), words));
}

}  // namespace

Answer interval(const IntervalOptions& options) {
    if (options.save == 0) {
        refuse(kInterval,
               "save: expected --save, the time from the beginning of a save until it is "
               "durable, such as 60s or 6min");
    }
    check_fields(kInterval, std::span<const Field<IntervalOptions>>(kFields), options);
    if (options.stall && *options.stall > options.save) {
        refuse(kInterval, fmt::format("stall: got {}; expected at most save, {}",
                                      shown(*options.stall, "s"), shown(options.save, "s")));
    }
    if (options.slowdown >= 1) {
        refuse(kInterval,
               "slowdown: got 100%; expected less: a save that stops training is a stall");
    }
    if (options.nodes != 1 && !options.mtbf) {
        refuse(kInterval, "nodes: got a number of nodes without --mtbf; expected both");
    }
    if (options.accelerators != 1 && !options.accelerator_mtbf) {
        refuse(kInterval,
               "accelerators: got a number of accelerators without --accelerator-mtbf; "
               "expected both");
    }
    Answer out;
    out.verb = kInterval;
    add_mtbf(out, options);
    const FailureModel model = model_of(out, options);
    out.title = fmt::format(
        "A failure each {}, a save in {}{}", shown(model.mtbf, "s"), shown(options.save, "s"),
        model.write > 0
            ? fmt::format(", of which training stands still {}", shown(model.stall, "s"))
            : std::string());
    const Input mtbf = input_of(out, "mtbf_seconds");
    const Input save = given("save", options.save);
    const Input stall = options.stall
                            ? given("stall", model.stall)
                            : Input{"stall", model.stall, "s", "default: as long as save"};
    const Input slowdown = given_unless_zero("slowdown", options.slowdown, "share");
    const Input restore = options.restore
                              ? given("restore", model.restore)
                              : Input{"restore", model.restore, "s", "default: as long as save"};
    const Input downtime = given_unless_zero("downtime", options.downtime, "s");
    add_figure(out, {"cost_seconds",
                     "computing that a save costs",
                     model.stall + model.slowdown * (options.save - model.stall),
                     "s",
                     "stall + slowdown * (save - stall)",
                     {stall, slowdown, save}});
    const Input cost = input_of(out, "cost_seconds");
    const double least = (1 - model.slowdown) * model.write;
    const double best = best_interval(model);
    if (goodput(model, best) <= 0) {
        refuse(kInterval,
               fmt::format(
                   "nothing would be kept: a failure comes each {}, and a save takes {}, a restore "
                   "{}; check the units of these",
                   shown(model.mtbf, "s"), shown(options.save, "s"), shown(model.restore, "s")));
    }
    add_figure(
        out,
        {"interval_seconds",
         "compute between saves",
         best,
         "s",
         "[x * mtbf_seconds, with (1 - x) * exp(x) = exp(-cost_seconds / mtbf_seconds), but at "
         "least (1 - slowdown) * (save - stall)]",
         {mtbf, cost, slowdown, save, stall}});
    const Input chosen = input_of(out, "interval_seconds");
    add_figure(out, {"period_seconds",
                     "from one save to the next",
                     best + cost.value,
                     "s",
                     "interval_seconds + cost_seconds",
                     {chosen, cost}});
    add_figure(
        out,
        {"goodput",
         "goodput: share of time that is kept",
         goodput(model, best),
         "share",
         "[interval_seconds * exp(-(restore + (1 - slowdown) * (save - stall)) / mtbf_seconds) / "
         "((exp(period_seconds / mtbf_seconds) - 1) * (mtbf_seconds + downtime))]",
         {chosen, restore, slowdown, save, stall, mtbf, input_of(out, "period_seconds"),
          downtime}});
    add_own(out, model, options, best);
    add_rules(out, model, cost.value, best, least);
    add_curve(out, model, best, least);
    if (least > 0 && best <= least) {
        out.notes.emplace_back(
            "Saves follow one another without a pause: each begins when the one before it "
            "is durable. A faster write would raise the goodput.");
    }
    if (out.at("goodput").value < 0.5) {
        out.notes.push_back(
            fmt::format("Less than half of the time is kept, since a failure comes each {:.3g} "
                        "hours and saving and "
                        "restoring take {:.3g} hours.",
                        model.mtbf / kHourSeconds, (options.save + model.restore) / kHourSeconds));
    }
    out.notes.emplace_back(
        "Failures are taken to be independent of each other and of the time (exponential). "
        "Young's and Daly's rules are approximations for a cost that is small against the "
        "time between failures.");
    return out;
}

VerbRow interval_verb() {
    return {{std::string(kInterval), "How often to save, and how much work is kept", kDetails,
             infos_of(std::span<const Field<IntervalOptions>>(kFields))},
            ask_interval};
}

}  // namespace penstock::plan
