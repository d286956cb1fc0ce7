// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/error.hpp>

namespace penstock::python {

/// Makes it the error of this thread's Python. With the GIL.
void set_python_error(const Error& error);

}  // namespace penstock::python
