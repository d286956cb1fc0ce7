// SPDX-License-Identifier: Apache-2.0
// Engine options kept in a file, as `penstock tune -o FILE` writes it:
//
//     {
//       "about": "penstock tune of /mnt/nvme, 2026-11-21T17:05:00Z",
//       "backend": "auto",
//       "block_bytes": 4194304,
//       "queue_depth": 16,
//       "in_flight_bytes": "64MiB",
//       "channels": 1
//     }
//
// JSON. The keys are the members of EngineOptions, all optional, and `about`, a text that is
// ignored. Numbers are integers; sizes may also be words with a unit.
#pragma once

#include <penstock/engine.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The options of a file. An option that it omits has the value of its environment variable or its
/// default, as in Engine::default_options(); an option that it names overrides the environment.
/// Throws Error: kInvalidArgument for text that is no such file, an unknown key, a wrong type or a
/// value that is not allowed (with file, key, value and the allowed values), kSystem if it cannot
/// be read.
[[nodiscard]] PENSTOCK_API EngineOptions load_options(const std::string& path);

/// "auto", "io_uring" (or "uring"), "libaio" (or "aio") and "posix"; nothing for another word.
[[nodiscard]] PENSTOCK_API std::optional<BackendKind> backend_named(std::string_view word);

/// "auto", "io_uring", "libaio" or "posix"; "" for any other value.
[[nodiscard]] PENSTOCK_API const char* name_of(BackendKind backend);

/// "auto", "bounce" and "cufile"; nothing for another word.
[[nodiscard]] PENSTOCK_API std::optional<GpuPath> gpu_path_named(std::string_view word);

/// The name of a path; "" for any other value.
[[nodiscard]] PENSTOCK_API const char* name_of(GpuPath path);

/// Pairs of a disk and a GPU with their path, as "259:1 0000:3b:00.0 bounce", with commas between;
/// nothing for another text. Paths are "bounce" and "cufile". An empty text has no pairs.
[[nodiscard]] PENSTOCK_API std::optional<std::vector<TunedGpuPath>> gpu_paths_in(
    std::string_view text);

/// The text that gpu_paths_in() reads.
[[nodiscard]] PENSTOCK_API std::string text_of(const std::vector<TunedGpuPath>& paths);

/// "auto", "cached", "direct" and "required"; nothing for another word.
[[nodiscard]] PENSTOCK_API std::optional<CachePolicy> cache_policy_named(std::string_view word);

/// The name of a policy; "" for any other value.
[[nodiscard]] PENSTOCK_API const char* name_of(CachePolicy policy);

}  // namespace penstock
