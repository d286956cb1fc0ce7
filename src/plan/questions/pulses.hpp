// SPDX-License-Identifier: Apache-2.0
// Jobs as stretches of time with a rate.
#pragma once

#include <penstock/plan.hpp>

#include <string>
#include <vector>

namespace penstock::plan {

/// Bytes a second from `start` to `end`, in seconds.
struct Pulse {
    double start = 0;
    double end = 0;
    double read = 0;
    double write = 0;
};

/// Rates that a job takes while it is busy.
struct JobRates {
    std::string name;
    std::string kind;
    double read = 0;
    double write = 0;
    double busy_share = 0;  ///< of the time that is looked at
};

/// Adds the stretches of all jobs within options.length. Throws Error (kInvalidArgument) that names
/// the job: for a kind that is not known, a member that is missing or that the kind does not have,
/// bursts that are longer than their distance, and more than a million of them.
[[nodiscard]] std::vector<JobRates> pulses_of(const MixOptions& options,
                                              std::vector<Pulse>& pulses);

}  // namespace penstock::plan
