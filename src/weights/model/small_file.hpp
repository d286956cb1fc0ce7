// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::weights {

/// The first `bytes_max` bytes of a file, or nothing if there is no file of this name. Throws
/// Error.
[[nodiscard]] std::optional<std::string> text_of(Engine& engine, const FileSystem& files,
                                                 const std::string& path, std::uint64_t bytes_max);

}  // namespace penstock::weights
