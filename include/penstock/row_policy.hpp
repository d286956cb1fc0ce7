// SPDX-License-Identifier: Apache-2.0
// The policy of a cache of rows: which of them stay in memory.
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <string_view>

namespace penstock {

enum class RowPolicy : std::uint8_t {
    kStatic,  ///< the preloaded rows stay, and the first that came to free memory
    kClock,   ///< rows that were used lately stay
    kS3Fifo,  ///< rows that were used more than once lately stay
    kWindow,  ///< rows that hints name stay, the soonest first; then those that were used most
};

/// "static", "clock", "s3fifo" or "window".
[[nodiscard]] PENSTOCK_API std::string_view name_of(RowPolicy policy) noexcept;

/// The policy of that name. Throws Error: kInvalidArgument with the names there are.
[[nodiscard]] PENSTOCK_API RowPolicy row_policy(std::string_view name);

}  // namespace penstock
