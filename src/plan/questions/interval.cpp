// SPDX-License-Identifier: Apache-2.0
// Between one failure and the next lie a downtime, then a time T with the mean M (mtbf): a restore,
// then segments. The first save is durable after A = interval + stall + write of computing, each
// further one after L = interval + stall + slowdown x write. So n saves become durable with the
// probability exp(-(restore + A + (n - 1) L) / M) at least, their mean number is
// exp(-(restore + A) / M) / (1 - exp(-L / M)), and the goodput is that times the interval, over
// downtime + M. A - L = write x (1 - slowdown).
#include "plan/amount.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace penstock::plan {

namespace {

constexpr std::string_view kInterval = "interval";
constexpr double kTimeMax = 1e15;                   // seconds: 30 million years
constexpr std::uint64_t kFailuresMax = 10'000'000;  // a fraction of a second

void check_time(const char* name, double seconds, bool zero) {
    if (!std::isfinite(seconds) || seconds < 0 || (seconds == 0 && !zero) || seconds > kTimeMax) {
        refuse(kInterval, fmt::format("{}: got {} s; expected a time {}, at most 1e15 s", name,
                                      seconds, zero ? "from 0 s on" : "above 0 s"));
    }
}

void check_model(const FailureModel& model) {
    check_time("mtbf", model.mtbf, false);
    check_time("stall", model.stall, true);
    check_time("write", model.write, true);
    check_time("restore", model.restore, true);
    check_time("downtime", model.downtime, true);
    if (!(model.slowdown >= 0 && model.slowdown < 1)) {
        refuse(kInterval,
               fmt::format("slowdown: got {}; expected a share from 0, below 1", model.slowdown));
    }
    if (model.stall + model.write <= 0) {
        refuse(kInterval, "save: got 0 s; expected the time that a save takes, above 0 s");
    }
}

// Computing that training loses for each save.
double cost_of(const FailureModel& model) {
    return model.stall + model.slowdown * model.write;
}

double least_interval(const FailureModel& model) {
    return (1 - model.slowdown) * model.write;
}

void check_interval(const FailureModel& model, double interval) {
    check_time("interval", interval, false);
    // A shorter one by rounding alone is the least one.
    if (interval < least_interval(model) * (1 - 1e-12)) {
        refuse(kInterval,
               fmt::format("interval: got {} s; a save is durable only {} s of computing after it "
                           "began, and the next one waits for it; expected at least that",
                           interval, least_interval(model)));
    }
}

}  // namespace

double goodput(const FailureModel& model, double interval) {
    check_model(model);
    check_interval(model, interval);
    const double period = (interval + cost_of(model)) / model.mtbf;
    const double undone = (model.restore + least_interval(model)) / model.mtbf;
    return interval / (model.mtbf + model.downtime) * std::exp(-undone) / std::expm1(period);
}

double best_interval(const FailureModel& model) {
    check_model(model);
    // x + log(1 - x) + cost / mtbf falls from above 0 to -inf; below 1 its zero is below
    // sqrt(2 cost / mtbf), since x + log(1 - x) < -x * x / 2.
    const double cost = cost_of(model) / model.mtbf;
    double low = 0;
    double high = std::min(1.0, std::sqrt(2 * cost));
    for (int i = 0; i < 200 && high > low; ++i) {
        const double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high) {
            break;
        }
        (middle + std::log1p(-middle) + cost > 0 ? low : high) = middle;
    }
    return std::max({high * model.mtbf, least_interval(model), 1e-9});
}

SimulatedJob simulate_job(const FailureModel& model, double interval, std::uint64_t failures,
                          std::uint64_t seed) {
    check_model(model);
    check_interval(model, interval);
    if (failures == 0 || failures > kFailuresMax) {
        refuse(kInterval,
               fmt::format("simulate: got {} failures; expected 1 to {}", failures, kFailuresMax));
    }
    const double first = interval + model.stall + model.write;
    const double next = interval + cost_of(model);
    std::mt19937_64 random(seed);
    double kept = 0;
    double saving = 0;
    double restoring = 0;
    double lost = 0;
    for (std::uint64_t i = 0; i < failures; ++i) {
        // 53 bits, above 0: exact on every platform, which std::exponential_distribution is not.
        const double share = (static_cast<double>(random() >> 11U) + 1) * 0x1p-53;
        const double until_failure = -std::log(share) * model.mtbf;
        const double restore = std::min(until_failure, model.restore);
        restoring += model.downtime + restore;
        const double running = until_failure - restore;
        const double saves = running < first ? 0 : 1 + std::floor((running - first) / next);
        const double saved = saves * interval;
        const double stalls =
            saves * model.stall + std::max(0.0, saves - 1) * model.slowdown * model.write;
        kept += saved;
        saving += stalls;
        lost += std::max(0.0, running - saved - stalls);
    }
    const double all = kept + saving + restoring + lost;
    if (!(all > 0) || !std::isfinite(all)) {
        refuse(kInterval,
               "simulate: the times of this job are too small or too large to be added up; "
               "check their units");
    }
    return {kept / all, lost / all, saving / all, restoring / all, failures};
}

}  // namespace penstock::plan
