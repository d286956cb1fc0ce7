// SPDX-License-Identifier: Apache-2.0
// What memory holds while a model streams: keys and values first, then as many weights as fit.
#pragma once

#include <penstock/plan.hpp>
#include <penstock/plan_model.hpp>

namespace penstock::plan {

/// Adds kv_tokens, kv_bytes_per_token and kv_cache_bytes where they are known. `batch`, `prompt`
/// and `generate` are those of the run. Throws Error (kInvalidArgument).
void add_kv_cache(Answer& out, const StreamOptions& options, const ModelParameters& model,
                  const Input& batch, const Input& prompt, const Input& generate);

/// Adds resident_bytes and resident_device_bytes: what is given, or what memory has left of the
/// keys and values. The figure weights_bytes is there. Throws Error (kInvalidArgument) where these
/// do not fit, and where more stays than there are weights.
void add_residents(Answer& out, const StreamOptions& options, const ModelParameters& model);

}  // namespace penstock::plan
