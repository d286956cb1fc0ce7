// SPDX-License-Identifier: Apache-2.0
// Settings as others take them.
#pragma once

#include "cli/tune/settings.hpp"

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock::cli {

/// An options file for Engine(options=...) and load_options(); `about` is for whoever finds it.
[[nodiscard]] nlohmann::ordered_json options_json(const TuneSettings& settings,
                                                  const EngineOptions& defaults,
                                                  const std::string& about);

/// Replaces the file, or the one that a link names, at once, or leaves it as it was; a pipe or a
/// device is written to. Throws Error.
void write_options_file(const std::string& path, const nlohmann::ordered_json& options);

/// Throws the Error that write_options_file() would end in for sure, so that it costs no time.
void check_options_file(const std::string& path);

/// The `aio` section of a DeepSpeed configuration: integers and true booleans, as it takes them.
[[nodiscard]] nlohmann::ordered_json deepspeed_json(const TuneSettings& settings);

/// The same work by fio, on a file that it makes in the folder `path`, or on the file or device
/// `path`, which it only reads. `backend` is the one that ran.
[[nodiscard]] std::string fio_command(const TuneSettings& settings, const std::string& backend,
                                      const std::string& path, bool is_folder, bool write);

}  // namespace penstock::cli
