// SPDX-License-Identifier: Apache-2.0
// Options whose words are sizes, rates or times, by the one rule of base/text/units.hpp.
#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <limits>
#include <string_view>

namespace CLI {
class Option;
}

namespace penstock::cli {

inline constexpr std::uint64_t kNoMost = std::numeric_limits<std::uint64_t>::max();

/// The option takes a size from `least` to `most` bytes. Its variable gets the bytes: a number.
CLI::Option* takes_size(CLI::Option* option, std::uint64_t least = 0, std::uint64_t most = kNoMost);

/// Bytes a second, above 0. `also` is a word that is left as it is.
CLI::Option* takes_rate(CLI::Option* option, std::string_view also = {});

/// Seconds. `also` is a word that is left as it is.
CLI::Option* takes_time(CLI::Option* option, double least, double most, std::string_view also = {});

}  // namespace penstock::cli
