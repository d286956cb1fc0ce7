// SPDX-License-Identifier: Apache-2.0
// The texts of protocols 0 and 1 of pickle, which are lines: nothing if a line is no such text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock::format {

/// "-12", "12L": two's complement, little-endian. At most as many digits as Python itself reads.
[[nodiscard]] std::optional<std::string> integer_of_line(std::string_view line);

/// repr() of a float.
[[nodiscard]] std::optional<double> float_of_line(std::string_view line);

/// repr() of a str of Python 2: its bytes.
[[nodiscard]] std::optional<std::string> string_of_line(std::string_view line);

/// The codec raw-unicode-escape: UTF-8, but for halves of surrogate pairs.
[[nodiscard]] std::optional<std::string> unicode_of_line(std::string_view line);

}  // namespace penstock::format
