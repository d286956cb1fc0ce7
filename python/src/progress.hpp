// SPDX-License-Identifier: Apache-2.0
// Long calls: without the GIL, and about every 100 ms with it, for a look at signals (Ctrl-C) and a
// call of a caller that wants progress reports.
#pragma once

#include "nanobind.hpp"

#include <penstock/error.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <optional>
#include <utility>

namespace penstock::python {

/// work(report) without the GIL. report(call) looks at signals and runs `call`, which returns a new
/// reference or sets an error, with it; false: what was raised, KeyboardInterrupt too, has to stop
/// the work, and is raised here.
template <typename Work>
void run_with_reports(Work work) {
    std::optional<nb::python_error> raised;
    const auto report = [&](const auto& call) {
        const nb::gil_scoped_acquire gil;
        bool going = PyErr_CheckSignals() == 0;
        if (going) {
            PyObject* const result = call();
            going = result != nullptr;
            Py_XDECREF(result);
        }
        if (!going) {
            raised.emplace();
        }
        return going;
    };
    try {
        const nb::gil_scoped_release nogil;
        work(report);
    } catch (const Error&) {
        if (!raised) {
            throw;
        }
    }
    if (raised) {
        throw nb::python_error(std::move(*raised));
    }
}

/// work(progress) without the GIL. `callable`: None, or called with (done, total) in bytes; what it
/// raises, and KeyboardInterrupt, stop the work and are raised here.
template <typename Work>
void run_with_progress(nb::handle callable, Work work) {
    run_with_reports([&](const auto& report) {
        const Progress progress = [&](std::uint64_t done, std::uint64_t total) {
            return report([&] {
                return callable.is_none()
                           ? Py_NewRef(Py_None)
                           : PyObject_CallFunction(callable.ptr(), "KK",
                                                   static_cast<unsigned long long>(done),
                                                   static_cast<unsigned long long>(total));
            });
        };
        work(progress);
    });
}

}  // namespace penstock::python
