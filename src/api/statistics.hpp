// SPDX-License-Identifier: Apache-2.0
// What an engine counted and what it runs on, as the public structures say it.
#pragma once

#include "engine/core.hpp"

#include <penstock/engine.hpp>

namespace penstock::api {

[[nodiscard]] EngineStats statistics(engine::Core& core);
[[nodiscard]] EngineDescription description(engine::Core& core, const EngineOptions& options);

}  // namespace penstock::api
