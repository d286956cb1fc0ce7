// SPDX-License-Identifier: Apache-2.0
// The ranks of a store as Python has them: a mailbox may be any object of Python.
#pragma once

#include "nanobind.hpp"

#include <penstock/ranks.hpp>

namespace penstock::python {

struct RanksObject {
    Ranks ranks;
};

/// None: the only rank.
[[nodiscard]] Ranks ranks_of(nb::handle object);

void bind_ranks(nb::module_& m);

}  // namespace penstock::python
