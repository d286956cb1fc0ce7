// SPDX-License-Identifier: Apache-2.0
// Settings in the formats of other programs.
#pragma once

#include "cli/tune/settings.hpp"

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock::cli {

/// An options file for Engine(options=...) and load_options(); `about` is a note for its readers.
[[nodiscard]] nlohmann::ordered_json options_json(const TuneSettings& settings,
                                                  const EngineOptions& defaults,
                                                  const std::string& about);

/// Replaces the file, or the target of a link, atomically, or leaves it as it was; a pipe or a
/// device is written to. Throws Error.
void write_options_file(const std::string& path, const nlohmann::ordered_json& options);

/// Throws the Error that write_options_file() would end in, before any time is spent. Refuses a
/// file that is there unless it is empty or an options file, and the one that is `measured`.
void check_options_file(const std::string& path, const std::string& measured);

/// The `aio` section of a DeepSpeed configuration: integers and JSON booleans, as it requires.
[[nodiscard]] nlohmann::ordered_json deepspeed_json(const TuneSettings& settings);

/// The same work by fio, on a file that it makes in the folder `path`, or on the file or device
/// `path`, which it only reads. `backend` is the one that ran.
[[nodiscard]] std::string fio_command(const TuneSettings& settings, const std::string& backend,
                                      const std::string& path, bool is_folder, bool write);

}  // namespace penstock::cli
