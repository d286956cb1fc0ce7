// SPDX-License-Identifier: Apache-2.0
// A model within an answer: its parameters as figures, its tensors as a table.
#pragma once

#include "plan/questions/optimizer.hpp"

#include <penstock/plan_model.hpp>

#include <string>

namespace penstock::plan {

/// Adds the figures "parameters", "bytes_per_parameter" and `name`, the bytes of the state.
void add_state(Answer& answer, const ModelParameters& model, const StateBytes& state,
               const std::string& name, const std::string& label);

/// Adds a note for each thing that was assumed.
void add_assumed(Answer& answer, const ModelParameters& model);

/// Adds the table of tensors, or a note where only their number is known.
void add_tensors(Answer& answer, const ModelParameters& model);

}  // namespace penstock::plan
