// SPDX-License-Identifier: Apache-2.0
#include "names.hpp"

#include <algorithm>

namespace penstock::python {

namespace {

constexpr std::size_t kShownMax = 80;

}  // namespace

namespace {

// Half characters of UTF-16, which a str may hold and UTF-8 may not, are spelt out.
std::string utf8(const nb::object& string) {
    const nb::object bytes =
        checked(PyUnicode_AsEncodedString(string.ptr(), "utf-8", "backslashreplace"));
    return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

// Never in the middle of a character.
void cut(std::string& text) {
    if (text.size() <= kShownMax) {
        return;
    }
    std::size_t end = kShownMax;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
        --end;
    }
    text.resize(end);
    text += "...";
}

// Bytes of a path that are not UTF-8 come through as Python has them in a str.
[[noreturn]] void raise(PyObject* type, const std::string& message) {
    PyErr_SetObject(type, path_object(message).ptr());
    throw nb::python_error();
}

}  // namespace

nb::object imported(const char* module) {
    return nb::module_::import_("sys").attr("modules").attr("get")(module);
}

std::string raw(nb::handle bytes_object) {
    char* data = nullptr;
    Py_ssize_t count = 0;
    if (PyBytes_AsStringAndSize(bytes_object.ptr(), &data, &count) != 0) {
        throw nb::python_error();
    }
    return {data, static_cast<std::size_t>(count)};
}

std::vector<std::uint64_t> numbers_of(nb::handle tuple) {
    const Py_ssize_t count = PyTuple_Size(tuple.ptr());
    std::vector<std::uint64_t> out;
    out.reserve(static_cast<std::size_t>(std::max<Py_ssize_t>(count, 0)));
    for (Py_ssize_t i = 0; i < count; ++i) {
        out.push_back(PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple.ptr(), i)));
    }
    if (PyErr_Occurred() != nullptr) {
        throw nb::python_error();
    }
    return out;
}

std::string text(nb::handle object) {
    return utf8(checked(PyObject_Str(object.ptr())));
}

nb::object path_object(const std::string& path) {
    return checked(
        PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
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
        text = utf8(checked(PyObject_Repr(object.ptr())));
    } catch (const nb::python_error&) {
        return type_text(object);
    }
    cut(text);
    return text;
}

std::string quoted(std::string text) {
    cut(text);
    return "'" + text + "'";
}

void raise_value(const std::string& message) {
    raise(PyExc_ValueError, message);
}

void raise_type(const std::string& message) {
    raise(PyExc_TypeError, message);
}

void cannot_pickle(const std::string& what, const std::string& instead) {
    raise_type("cannot pickle a penstock." + what + ": pass " + instead +
               " and make one in the process that uses it. (Processes that are spawned, or come "
               "from a forkserver, which is the default from Python 3.14 on, get what they are to "
               "work on pickled.)");
}

}  // namespace penstock::python
