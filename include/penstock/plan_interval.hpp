// SPDX-License-Identifier: Apache-2.0
// The best interval between saves, from the time between failures and the times of a save and a
// restore.
#pragma once

#include <penstock/plan_answer.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::plan {

/// The failures and saves of a job. All times in seconds, finite; failures are independent, with
/// exponential times between them.
struct FailureModel {
    double mtbf = 0;   ///< mean time between failures of the whole job, above 0
    double stall = 0;  ///< time that training stops at each save, above 0
    double write = 0;  ///< from the end of the stall until the save is durable; 0 if it is by then
    double slowdown = 0;  ///< share of its speed that training loses meanwhile, from 0, below 1
    double restore = 0;   ///< reading the last save; a failure meanwhile restarts it
    double downtime = 0;  ///< after each failure, before restoring begins
};

/// The share of time in which a job makes progress that is kept, if it saves after each `interval`
/// seconds of computing at full speed. It is exact for the model. With
/// L = interval + stall + slowdown x write it is
///     interval x exp(-(restore + write x (1 - slowdown)) / mtbf) /
///         ((exp(L / mtbf) - 1) x (mtbf + downtime)),
/// which for write = downtime = 0 is the complete model of J. T. Daly, "A higher order estimate of
/// the optimum checkpoint interval for restart dumps" (2006); docs/plan.md derives it. Throws Error
/// (kInvalidArgument) for an invalid FailureModel, and for an interval in which a save would not be
/// durable before the next one begins. Thread-safe.
[[nodiscard]] PENSTOCK_API double goodput(const FailureModel& model, double interval);

/// The exact interval with the highest goodput: x x mtbf, where (1 - x) x exp(x) =
/// exp(-(stall + slowdown x write) / mtbf). It is longer if a save would not be durable before the
/// next one begins. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API double best_interval(const FailureModel& model);

/// The shares of time of a simulated job; they add up to 1.
struct SimulatedJob {
    double goodput = 0;    ///< computing that was kept
    double lost = 0;       ///< computing that a failure undid
    double saving = 0;     ///< stalls, and the slowdown by writing
    double restoring = 0;  ///< restores and downtimes
    std::uint64_t failures = 0;
};

/// Simulates the job event by event, with this number of random failures. The same seed gives the
/// same numbers. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API SimulatedJob simulate_job(const FailureModel& model, double interval,
                                                     std::uint64_t failures, std::uint64_t seed);

/// Times in seconds.
struct IntervalOptions {
    std::optional<double> mtbf;              ///< of one node
    double nodes = 1;                        ///< a whole number
    std::optional<double> accelerator_mtbf;  ///< of one accelerator, in addition to the nodes'
    double accelerators = 1;                 ///< a whole number
    double save = 0;                         ///< from the beginning of a save until it is durable
    std::optional<double> stall;     ///< the part of it in which training stops (default: all)
    double slowdown = 0;             ///< share of its speed that training loses during the rest
    std::optional<double> restore;   ///< reading the last save (default: as long as `save`)
    double downtime = 0;             ///< after each failure, before restoring begins
    std::optional<double> interval;  ///< another interval, to compare its goodput with the best
    std::optional<double> simulate;  ///< failures to simulate, to check the goodput
    double seed = 1;                 ///< of the simulation
};

/// Figures: mtbf_seconds (of the job), interval_seconds (computing between saves, the best),
/// period_seconds, goodput, and with `interval` own_goodput, with `simulate` simulated_goodput. The
/// table "rules" has Young's, Daly's and the availability optimum; the series "goodput" is the
/// curve. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer interval(const IntervalOptions& options);

}  // namespace penstock::plan
