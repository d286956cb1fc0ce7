// SPDX-License-Identifier: Apache-2.0
// Plain arguments as Python gives them. Where one is wrong, the error names it, what came and what
// is allowed; nanobind's own would list C++ types.
#pragma once

#include "nanobind.hpp"

#include <cstdint>
#include <limits>
#include <string>

namespace penstock::python {

/// A whole number from 0 to `max`: int, or what has __index__ (NumPy's). `what` it counts is for
/// the message: "requests". TypeError for other types, bool among them; ValueError out of range.
[[nodiscard]] std::uint64_t count_of(nb::handle value, const std::string& argument,
                                     const char* what,
                                     std::uint64_t max = std::numeric_limits<std::uint64_t>::max());
/// True or False, NumPy's too. TypeError for all else.
[[nodiscard]] bool flag_of(nb::handle value, const char* argument);
/// A str of UTF-8. TypeError for all else.
[[nodiscard]] std::string word_of(nb::handle value, const char* argument);

}  // namespace penstock::python
