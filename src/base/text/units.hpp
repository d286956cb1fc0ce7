// SPDX-License-Identifier: Apache-2.0
// Sizes as people write and read them. 1 KiB = 1024 bytes, 1 kB = 1000 bytes; the two are never
// mixed.
#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::base {

/// "4096", "64K", "64KiB" (both 65536), "64kB" (64000), "1M", "1.5GiB", "2GB", "1TiB". A bare
/// letter is binary, as in fio. Error: kInvalidArgument with the text and the allowed forms.
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view text);

/// "1.50 GiB", "4 KiB", "17 B": binary units, three digits.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

/// "7.02 GB/s": decimal units, as drives are sold.
[[nodiscard]] std::string format_rate(double bytes_per_second);

/// "85 us", "1.21 ms", "3.4 s".
[[nodiscard]] std::string format_duration(std::int64_t nanoseconds);

}  // namespace penstock::base
