// SPDX-License-Identifier: Apache-2.0
// penstock::Error becomes what penstock/_errors.py makes of it: ValueError, MemoryError, or a
// penstock.Error.
#include "bind.hpp"
#include "errors.hpp"
#include "names.hpp"

#include <penstock/error.hpp>

#include <nanobind/stl/string.h>

#include <string>

namespace penstock::python {

namespace {

// std::system_error puts the category's words behind ours, which say more.
std::string message_of(const Error& error) {
    std::string text = error.what();
    const std::string tail = ": " + error.code().message();
    if (text.ends_with(tail)) {
        text.resize(text.size() - tail.size());
    }
    return text;
}

nb::object path_of(const Error& error) {
    if (error.path().empty()) {
        return nb::none();
    }
    return checked(PyUnicode_DecodeFSDefaultAndSize(error.path().data(),
                                                    static_cast<Py_ssize_t>(error.path().size())));
}

nb::object message_object(const Error& error) {
    const std::string text = message_of(error);
    return checked(
        PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

}  // namespace

void set_python_error(const Error& error) {
    const nb::object offset =
        error.offset() == kNoOffset ? nb::none() : nb::object(nb::int_(error.offset()));
    const nb::object made =
        nb::module_::import_("penstock._errors")
            .attr("from_core")(static_cast<int>(error.reason()), message_object(error),
                               error.system_errno(), error.operation(), path_of(error), offset);
    PyErr_SetObject(made.type().ptr(), made.ptr());
}

namespace {

void translate(const std::exception_ptr& thrown, void* /*payload*/) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& error) {
        set_python_error(error);
    }
}

}  // namespace

void bind_errors(nb::module_& /*m*/) {
    nb::register_exception_translator(translate);
}

}  // namespace penstock::python
