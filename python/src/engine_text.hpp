// SPDX-License-Identifier: Apache-2.0
// The signature and the docstring of penstock.Engine, made of the table of options.
#pragma once

#include <string>

namespace penstock::python {

[[nodiscard]] std::string engine_signature();
[[nodiscard]] std::string engine_doc();

}  // namespace penstock::python
