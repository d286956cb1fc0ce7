// SPDX-License-Identifier: Apache-2.0
// The environment of a measurement: every figure is printed with it.
#pragma once

#include "probe/job.hpp"

#include <penstock/penstock.hpp>

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock::report {

/// "Intel(R) Xeon(R) ...", or empty.
[[nodiscard]] std::string cpu_model();

/// Kernel, processor, memory, versions.
[[nodiscard]] nlohmann::json machine_json();

/// File, file system, device, alignments.
[[nodiscard]] nlohmann::json target_json(const probe::Target& target);

/// "ext4 on nvme0n1 (Samsung ...), direct I/O, ..."
[[nodiscard]] std::string target_text(const probe::Target& target);

/// The result of Engine::describe().
[[nodiscard]] nlohmann::json engine_json(const EngineDescription& description);

/// "2026-11-21T17:05:00Z"
[[nodiscard]] std::string utc_now();

}  // namespace penstock::report
