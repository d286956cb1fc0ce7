// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nanobind.hpp"

#include <penstock/error.hpp>

#include <optional>

namespace penstock::python {

/// Makes it the error of this thread's Python. With the GIL.
void set_python_error(const Error& error);
/// The exception of Python, if it is a penstock.Error about a file. With the GIL.
[[nodiscard]] std::optional<Error> about_a_file(const nb::python_error& raised);

}  // namespace penstock::python
