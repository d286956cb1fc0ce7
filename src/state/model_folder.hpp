// SPDX-License-Identifier: Apache-2.0
// Which file of a folder stands for a model: one rule for all that take a folder.
#pragma once

#include <penstock/file.hpp>

#include <optional>
#include <span>
#include <string>

namespace penstock::state {

/// The name of the index in these folders, which have one model together, or of its only file:
/// "model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json", the only other
/// index, and then in the same order the `.safetensors`. Nothing for folders without any, or with
/// several others. Throws Error of the system.
[[nodiscard]] std::optional<std::string> model_file(const FileSystem& files,
                                                    std::span<const std::string> folders);

/// The same, or Error (kInvalidArgument) that says what is there, and what to pass.
[[nodiscard]] std::string the_model_file(const FileSystem& files,
                                         std::span<const std::string> folders);

/// The folder of the model that runs in each step, for the folder of a pipeline of diffusers, which
/// has a model_index.json and a folder for each model. Any other path is returned as it is; so is a
/// folder with a model_file() of its own, unless `always`. Throws Error of the system.
[[nodiscard]] std::string model_folder(const FileSystem& files, const std::string& folder,
                                       bool always = false);

/// The path of the model_file() of a model_folder(); else of any file of tensors; else nothing. For
/// advice.
[[nodiscard]] std::optional<std::string> tensors_in(const FileSystem& files,
                                                    const std::string& folder);

}  // namespace penstock::state
