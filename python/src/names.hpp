// SPDX-License-Identifier: Apache-2.0
// Python objects that are asked for again and again: names, interned once, and short calls with
// them.
#pragma once

#include "nanobind.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::python {

/// The name of a method or attribute, interned. Lives as long as the process: no destructor runs
/// after the interpreter's end.
class Name {
public:
    explicit Name(const char* text) : name_(PyUnicode_InternFromString(text)) {}
    [[nodiscard]] PyObject* get() const { return name_; }

private:
    PyObject* name_;
};

[[nodiscard]] inline nb::object checked(PyObject* object) {
    if (object == nullptr) {
        throw nb::python_error();
    }
    return nb::steal(object);
}

[[nodiscard]] inline nb::object get(nb::handle object, const Name& name) {
    return checked(PyObject_GetAttr(object.ptr(), name.get()));
}

[[nodiscard]] inline nb::object call(nb::handle object, const Name& name) {
    PyObject* arguments[] = {object.ptr()};
    return checked(PyObject_VectorcallMethod(name.get(), arguments, 1, nullptr));
}

[[nodiscard]] inline bool truth(nb::handle object) {
    const int value = PyObject_IsTrue(object.ptr());
    if (value < 0) {
        throw nb::python_error();
    }
    return value == 1;
}

/// A module that is imported already, or None: who has no torch has no tensors.
[[nodiscard]] nb::object imported(const char* module);
/// The bytes of a bytes object.
[[nodiscard]] std::string raw(nb::handle bytes_object);
/// The numbers of a tuple, none of them negative.
[[nodiscard]] std::vector<std::uint64_t> numbers_of(nb::handle tuple);
/// str(object), as UTF-8.
[[nodiscard]] std::string text(nb::handle object);
/// A path, or a text with paths in it, as Python's str; bytes that are not UTF-8 come through.
[[nodiscard]] nb::object path_object(const std::string& path);
/// "numpy.ndarray", "int", ...
[[nodiscard]] std::string type_text(nb::handle object);
/// repr(object), cut to a length that fits into a message; never throws.
[[nodiscard]] std::string shown(nb::handle object);
/// 'text', cut likewise.
[[nodiscard]] std::string quoted(std::string text);

[[noreturn]] void raise_value(const std::string& message);
[[noreturn]] void raise_type(const std::string& message);
/// TypeError: a `what` lives in its process; others are to be given `instead` of it.
[[noreturn]] void cannot_pickle(const std::string& what, const std::string& instead);

}  // namespace penstock::python
