// SPDX-License-Identifier: Apache-2.0
// What train, size and mix share: the job that options name.
#pragma once

#include <penstock/plan.hpp>

#include <string>
#include <string_view>

namespace penstock::plan {

/// The first row that fits; empty words fit all. `with_batch`: of those that have a batch. Throws
/// Error (kInvalidArgument) with the nearest name.
[[nodiscard]] TrainPreset preset_of(std::string_view verb, const std::string& model,
                                    const std::string& preset, const std::string& accelerator,
                                    bool with_batch = false);

struct Workload {
    TrainPreset row;   ///< with the numbers that were given in place of the preset's
    std::string name;  ///< "resnet50 on h100 (snia-2024)"
};

/// Throws Error (kInvalidArgument) where neither a model nor both numbers are given.
[[nodiscard]] Workload workload_of(std::string_view verb, const TrainOptions& options);

}  // namespace penstock::plan
