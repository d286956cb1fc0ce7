// SPDX-License-Identifier: Apache-2.0
// Tensors that a load fills: whether their memory may be written, asked before a byte is read.
#pragma once

#include "nanobind.hpp"

namespace penstock::python {

/// ValueError naming a tensor of the host whose first byte or last cannot be written, one whose
/// elements share memory, or two that do. `tensors`: of torch; `names`: for messages. `kin`: None,
/// or what those have in common that share in the file what they share here, as a tuple of two
/// ints.
void refuse_unfit(const nb::list& names, const nb::list& tensors, const nb::list& kin);

}  // namespace penstock::python
