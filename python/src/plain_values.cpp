// SPDX-License-Identifier: Apache-2.0
#include "plain_values.hpp"

#include "format/grammar.hpp"
#include "names.hpp"

#include <cstddef>

namespace penstock::python {

namespace {

using format::Value;
using format::ValueKind;

Value of(ValueKind kind, std::string text = {}) {
    Value value;
    value.kind = kind;
    value.text = std::move(text);
    return value;
}

std::string utf8(nb::handle string) {
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_AsUTF8AndSize(string.ptr(), &bytes);
    if (text == nullptr) {
        PyErr_Clear();
        return "\xff";  // lone surrogates; the writer refuses them
    }
    return {text, static_cast<std::size_t>(bytes)};
}

Value integer(nb::handle o) {
    int overflow = 0;
    const long long small = PyLong_AsLongLongAndOverflow(o.ptr(), &overflow);
    if (overflow == 0) {
        Value value = of(ValueKind::kInt);
        value.integer = small;
        return value;
    }
    const auto bits = nb::cast<std::size_t>(o.attr("bit_length")());
    return of(ValueKind::kBigInt,
              raw(o.attr("to_bytes")(bits / 8 + 1, "little", nb::arg("signed") = true)));
}

}  // namespace

std::optional<Value> plain_value(nb::handle o) {
    PyObject* const p = o.ptr();
    if (o.is_none()) {
        return of(ValueKind::kNone);
    }
    if (PyBool_Check(p)) {
        Value value = of(ValueKind::kBool);
        value.flag = p == Py_True;
        return value;
    }
    if (PyUnicode_CheckExact(p)) {
        return of(ValueKind::kString, utf8(o));
    }
    if (PyLong_CheckExact(p)) {
        return integer(o);
    }
    if (PyFloat_CheckExact(p)) {
        Value value = of(ValueKind::kFloat);
        value.real = PyFloat_AsDouble(p);
        return value;
    }
    if (PyComplex_CheckExact(p)) {
        Value value = of(ValueKind::kComplex);
        value.real = PyComplex_RealAsDouble(p);
        value.imaginary = PyComplex_ImagAsDouble(p);
        return value;
    }
    if (PyBytes_CheckExact(p)) {
        return of(ValueKind::kBytes, raw(o));
    }
    return std::nullopt;
}

std::optional<std::string> factory_name(nb::handle factory) {
    if (factory.is_none()) {
        return "";
    }
    for (const format::Factory& known : format::kFactories) {
        const nb::module_ module = nb::module_::import_(std::string(known.module).c_str());
        const std::string name(known.name);
        if (factory.is(nb::object(module.attr(name.c_str())))) {
            return name;
        }
    }
    return std::nullopt;
}

}  // namespace penstock::python
