// SPDX-License-Identifier: Apache-2.0
// Scratch files of commands: those of probe/scratch.hpp, which a signal removes too.
#pragma once

#include "probe/job.hpp"
#include "report/progress.hpp"

namespace penstock::cli {

using probe::Sample;
using probe::Target;

/// As probe::make_target(). Throws Error and Interrupted.
[[nodiscard]] Target make_target(probe::TargetRequest request, report::Progress& progress);

}  // namespace penstock::cli
