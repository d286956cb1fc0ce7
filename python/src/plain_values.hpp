// SPDX-License-Identifier: Apache-2.0
// Values of Python that have no others in them, as a state holds them.
#pragma once

#include "format/value.hpp"
#include "nanobind.hpp"

#include <optional>
#include <string>

namespace penstock::python {

/// None, a bool, a number, a text or bytes; nothing for any other object, also of a class of these.
[[nodiscard]] std::optional<format::Value> plain_value(nb::handle object);

/// The name of what a defaultdict makes: empty for None; nothing for a callable that a state cannot
/// hold.
[[nodiscard]] std::optional<std::string> factory_name(nb::handle factory);

}  // namespace penstock::python
