// SPDX-License-Identifier: Apache-2.0
// Keeps Python's collector of cycles quiet for a scope that makes many objects which all stay: it
// would go through everything that there is, several times, and find nothing.
#pragma once

#include "nanobind.hpp"

namespace penstock::python {

class WithoutCollection {
public:
    WithoutCollection() : was_on_(PyGC_Disable() != 0) {}
    WithoutCollection(const WithoutCollection&) = delete;
    WithoutCollection& operator=(const WithoutCollection&) = delete;
    ~WithoutCollection() {
        if (was_on_) {
            PyGC_Enable();
        }
    }

private:
    bool was_on_;
};

}  // namespace penstock::python
