// SPDX-License-Identifier: Apache-2.0
// NumPy's arrays and scalars as a state holds them.
#pragma once

#include "nanobind.hpp"

#include <string>
#include <string_view>

namespace penstock::python {

/// The bytes of a scalar. For a text, with the zeros at its end, which NumPy's arrays strip.
[[nodiscard]] std::string numpy_data(nb::handle scalar, std::string_view type);

/// Empty for an array or a scalar that a state can hold.
[[nodiscard]] std::string wrong_with_numpy(nb::handle object, bool is_array);

}  // namespace penstock::python
