// SPDX-License-Identifier: Apache-2.0
#include "names.hpp"

#include <nanobind/stl/string.h>

namespace penstock::python {

namespace {

constexpr std::size_t kShownMax = 80;

}  // namespace

std::string text(nb::handle object) {
    return nb::cast<std::string>(checked(PyObject_Str(object.ptr())));
}

std::string type_text(nb::handle object) {
    try {
        const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
        const std::string module = text(nb::object(type.attr("__module__")));
        const std::string name = text(nb::object(type.attr("__qualname__")));
        return module == "builtins" ? name : module + "." + name;
    } catch (const nb::python_error&) {
        return "object";
    }
}

std::string shown(nb::handle object) {
    std::string text;
    try {
        text = nb::cast<std::string>(nb::repr(object));
    } catch (const nb::python_error&) {
        return type_text(object);
    }
    if (text.size() > kShownMax) {
        text.resize(kShownMax);
        text += "...";
    }
    return text;
}

void raise_value(const std::string& message) {
    throw nb::value_error(message.c_str());
}

void raise_type(const std::string& message) {
    throw nb::type_error(message.c_str());
}

void cannot_pickle(const std::string& what, const std::string& instead) {
    raise_type("cannot pickle a penstock." + what + ": pass " + instead +
               " and make one in the process that uses it. (Processes that are spawned, or come "
               "from a forkserver, which is the default from Python 3.14 on, get what they are to "
               "work on pickled.)");
}

}  // namespace penstock::python
