// SPDX-License-Identifier: Apache-2.0
// The page cache of this machine, by hand. What reads take from it: CachePolicy.
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

/// Asks the kernel to read `bytes` bytes of a file from `offset` on (nothing: to its end) into the
/// page cache. Returns when it has been asked for all of them: the last are still being read, and
/// a kernel that is short of memory leaves some out. Any thread. Throws Error where the file cannot
/// be opened.
PENSTOCK_API void prefetch(const std::string& path, std::uint64_t offset = 0,
                           std::optional<std::uint64_t> bytes = {});

/// Writes what is dirty in a file to its device, then drops those pages of the range that nobody
/// has mapped or locked. Any thread; blocks. Throws Error where the file cannot be read or synced.
PENSTOCK_API void evict(const std::string& path, std::uint64_t offset = 0,
                        std::optional<std::uint64_t> bytes = {});

}  // namespace penstock
