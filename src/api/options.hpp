// SPDX-License-Identifier: Apache-2.0
// Converts the public options to those of the engine.
#pragma once

#include "base/result.hpp"
#include "engine/core.hpp"

#include <penstock/engine.hpp>

namespace penstock::api {

/// Checked: kInvalidArgument names the option, its value and the allowed values.
[[nodiscard]] base::Result<engine::CoreOptions> core_options(const EngineOptions& options);

/// The defaults, changed by the environment.
[[nodiscard]] base::Result<EngineOptions> options_from_environment();

/// The backends to try, in order; only one when it is forced.
[[nodiscard]] std::vector<engine::BackendEntry> backends_for(BackendKind kind);

}  // namespace penstock::api
