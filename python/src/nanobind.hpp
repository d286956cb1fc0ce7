// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "casters.hpp"

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

/// A list of objects of a bound class.
template <typename Item>
nb::list list_of(std::vector<Item> items) {
    nb::list out;
    for (Item& item : items) {
        out.append(nb::cast(std::move(item)));
    }
    return out;
}

}  // namespace penstock::python
