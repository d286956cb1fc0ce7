// SPDX-License-Identifier: Apache-2.0
// Progress reports of a long call; the caller may stop it.
#pragma once

#include <cstdint>
#include <functional>

namespace penstock {

/// Called about every 100 ms, on the caller's own thread, with the bytes that are done and the
/// bytes of the whole call. False stops the call: it throws kCancelled, and removes its unfinished
/// files.
using Progress = std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

}  // namespace penstock
