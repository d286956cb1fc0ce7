// SPDX-License-Identifier: Apache-2.0
// An engine's counters and environment, as the public structures.
#pragma once

#include "engine/core.hpp"

#include <penstock/engine.hpp>

namespace penstock::api {

[[nodiscard]] EngineStats statistics(engine::Core& core);
[[nodiscard]] EngineDescription description(engine::Core& core, const EngineOptions& options);

}  // namespace penstock::api
