// SPDX-License-Identifier: Apache-2.0
// The signature and the docstring of penstock.Engine, and its options as text, made of the table of
// options.
#pragma once

#include <penstock/engine.hpp>

#include <string>

namespace penstock::python {

[[nodiscard]] std::string engine_signature();
[[nodiscard]] std::string engine_doc();
/// As the arguments of Engine().
[[nodiscard]] std::string options_text(const EngineOptions& options);

}  // namespace penstock::python
