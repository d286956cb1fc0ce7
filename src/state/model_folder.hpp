// SPDX-License-Identifier: Apache-2.0
// Which file of a folder stands for a model: one rule for all that take a folder.
#pragma once

#include <penstock/file.hpp>

#include <optional>
#include <span>
#include <string>

namespace penstock::state {

/// The name of the index in these folders, which have one model together, or of its only file:
/// "model.safetensors.index.json", the only other index, "model.safetensors", the only other
/// `.safetensors`. Nothing if it has none of them, or several. Throws Error of the system.
[[nodiscard]] std::optional<std::string> model_file(const FileSystem& files,
                                                    std::span<const std::string> folders);

/// For a folder of which model_file() finds none.
inline constexpr const char* kNoModelFile =
    "there is no .safetensors file, or there are several and no index; give the path of one";

}  // namespace penstock::state
