// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/questions/layout.hpp"

#include <penstock/plan_model.hpp>

#include <string_view>

namespace penstock::plan {

/// Adds the figures ranks, files_bytes, rank_bytes and writing_ranks, and the table of stages,
/// where the options have a layout. The figure checkpoint_bytes is there. Throws Error
/// (kInvalidArgument).
void add_layout(Answer& out, std::string_view verb, const CheckpointOptions& options,
                const ModelParameters& model, const OptimizerBytes& optimizer,
                const StateBytes& state);

}  // namespace penstock::plan
