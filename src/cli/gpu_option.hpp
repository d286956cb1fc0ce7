// SPDX-License-Identifier: Apache-2.0
// The option --device of commands that measure the memory of a GPU.
#pragma once

#include <penstock/gpu.hpp>

#include <cstdint>
#include <string>

namespace penstock::cli {

/// The number in "cuda:0"; "cuda" is 0. Throws CLI::ValidationError for another word.
[[nodiscard]] std::int32_t gpu_of(const std::string& word);

/// The GPU of that number. Throws Error: kUnsupported, with the reason, where none can be used;
/// kInvalidArgument where there is no such one.
[[nodiscard]] Gpu find_gpu(const std::string& command, std::int32_t number);

}  // namespace penstock::cli
