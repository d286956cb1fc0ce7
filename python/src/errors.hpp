// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nanobind.hpp"

#include <penstock/error.hpp>

#include <optional>
#include <string>

namespace penstock::python {

/// What it says, without the words of its category.
[[nodiscard]] std::string message_of(const Error& error);
/// Makes it the error of this thread's Python. With the GIL.
void set_python_error(const Error& error);
/// The exception of Python, if it is a penstock.Error about a file. With the GIL.
[[nodiscard]] std::optional<Error> about_a_file(const nb::python_error& raised);
/// Makes a text a RuntimeWarning, whose place is the caller of Penstock; nothing where it is empty.
/// With the GIL.
void warn_of(const std::string& text);

}  // namespace penstock::python
