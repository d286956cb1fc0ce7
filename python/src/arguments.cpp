// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include "names.hpp"

#include <nanobind/stl/string.h>

namespace penstock::python {

std::uint64_t count_of(nb::handle value, const std::string& argument, const char* what,
                       std::uint64_t max) {
    PyObject* index = PyBool_Check(value.ptr()) ? nullptr : PyNumber_Index(value.ptr());
    if (index == nullptr) {
        PyErr_Clear();
        raise_type(argument + ": this is a " + type_text(value) + "; give " + what +
                   " as an int, 0 or more");
    }
    const nb::object owner = nb::steal(index);
    const unsigned long long number = PyLong_AsUnsignedLongLong(index);
    if (PyErr_Occurred() != nullptr || number > max) {
        PyErr_Clear();
        raise_value(argument + ": " + shown(value) + " is out of range; give " + what +
                    ", from 0 to " + std::to_string(max));
    }
    return number;
}

bool flag_of(nb::handle value, const char* argument) {
    if (PyBool_Check(value.ptr())) {
        return value.ptr() == Py_True;
    }
    const std::string type = type_text(value);
    if (type == "numpy.bool" || type == "numpy.bool_") {
        return truth(value);
    }
    raise_type(std::string(argument) + ": this is a " + type + "; give True or False");
}

std::string word_of(nb::handle value, const char* argument) {
    if (PyUnicode_Check(value.ptr()) == 0) {
        raise_type(std::string(argument) + ": this is a " + type_text(value) + "; give a str");
    }
    return text(value);
}

}  // namespace penstock::python
