// SPDX-License-Identifier: Apache-2.0
// From the public options to what the engine is made with.
#pragma once

#include "base/result.hpp"
#include "engine/core.hpp"

#include <penstock/engine.hpp>

namespace penstock::api {

/// Checked: kInvalidArgument names the option, what came, and what is allowed.
[[nodiscard]] base::Result<engine::CoreOptions> core_options(const EngineOptions& options);

/// The defaults, less what the environment says.
[[nodiscard]] base::Result<EngineOptions> options_from_environment();

/// The backends to try, in order; one when it is forced.
[[nodiscard]] std::vector<engine::BackendEntry> backends_for(BackendKind kind);

}  // namespace penstock::api
