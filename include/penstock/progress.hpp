// SPDX-License-Identifier: Apache-2.0
// Progress reports of a long call, which its caller may stop.
#pragma once

#include <cstdint>
#include <functional>

namespace penstock {

/// Called about every 100 ms, on the caller's own thread, with the bytes that are done and the
/// bytes of the whole call. False stops the call: it throws kCancelled, and removes what it had
/// begun.
using Progress = std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

}  // namespace penstock
