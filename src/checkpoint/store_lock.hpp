// SPDX-License-Identifier: Apache-2.0
// One process writes to a store: it holds the lock on ".lock" until its store is destroyed, or it
// dies. The text in that file says who it is, for the message of whoever comes second.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <string>

namespace penstock::checkpoint {

/// Waits as long as `wait_ms`; throws an Error with EWOULDBLOCK that names the owner's process and
/// host.
[[nodiscard]] FileLock lock_store(Engine& engine, const FileSystem& files,
                                  const std::string& folder, std::uint32_t wait_ms);

}  // namespace penstock::checkpoint
