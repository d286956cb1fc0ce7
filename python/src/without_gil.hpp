// SPDX-License-Identifier: Apache-2.0
// Gives the GIL away for a scope. Unlike nanobind's own it survives the end of the interpreter:
// before Python 3.14, a daemon thread that asks for the GIL then is ended by pthread_exit(), which
// unwinds its stack and would call std::terminate() at the first frame that is noexcept. Here it
// stops instead, as Python 3.14 does it, until the process is gone.
#pragma once

#include "nanobind.hpp"

#include <unistd.h>

namespace penstock::python {

class WithoutGil {
public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;
    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            // Nothing but the forced unwinding gets here, and nothing may leave.
            while (true) {
                ::pause();
            }
        }
    }

private:
    PyThreadState* state_;
};

}  // namespace penstock::python
