// SPDX-License-Identifier: Apache-2.0
// Explicit control of the page cache of this machine. CachePolicy says how reads use it.
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

/// Asks the kernel to read `bytes` bytes of a file from `offset` on (nothing: to its end) into the
/// page cache. Returns when all have been requested: the last ones may still be being read, and a
/// kernel that is short of memory may omit some. Any thread. Throws Error if the file cannot be
/// opened.
PENSTOCK_API void prefetch(const std::string& path, std::uint64_t offset = 0,
                           std::optional<std::uint64_t> bytes = {});

/// Writes the dirty pages of a file to its device, then drops the pages of the range that no
/// process has mapped or locked. Any thread; blocks. Throws Error if the file cannot be read or
/// synced.
PENSTOCK_API void evict(const std::string& path, std::uint64_t offset = 0,
                        std::optional<std::uint64_t> bytes = {});

}  // namespace penstock
