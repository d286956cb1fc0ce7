// SPDX-License-Identifier: Apache-2.0
// The policy of a row cache: which rows stay in memory.
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <string_view>

namespace penstock {

enum class RowPolicy : std::uint8_t {
    kStatic,  ///< the preloaded rows stay, and the first rows that are read into free memory
    kClock,   ///< recently used rows stay
    kS3Fifo,  ///< rows that were recently used more than once stay
    kWindow,  ///< rows that hints name stay, the soonest first; then the most used rows
};

/// "static", "clock", "s3fifo" or "window".
[[nodiscard]] PENSTOCK_API std::string_view name_of(RowPolicy policy) noexcept;

/// The policy of that name. Throws Error: kInvalidArgument with the valid names.
[[nodiscard]] PENSTOCK_API RowPolicy row_policy(std::string_view name);

}  // namespace penstock
