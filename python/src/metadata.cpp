// SPDX-License-Identifier: Apache-2.0
#include "metadata.hpp"

#include "arguments.hpp"
#include "names.hpp"
#include "store/manifest/metadata.hpp"

#include <cstdint>
#include <string>
#include <variant>

namespace penstock::python {

namespace {

MetadataValue value_of(nb::handle object, const std::string& name) {
    PyObject* const p = object.ptr();
    if (object.is_none()) {
        return std::monostate();
    }
    if (PyBool_Check(p)) {
        return truth(object);
    }
    if (PyFloat_Check(p)) {
        return PyFloat_AsDouble(p);
    }
    if (PyLong_Check(p)) {
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(p, &overflow);
        if (overflow != 0) {
            raise_value("metadata: " + quoted(name) +
                        ": expected an integer of 64 bits, got one that is larger; give a float, "
                        "or text");
        }
        return std::int64_t{number};
    }
    return word_of(object, "metadata");
}

nb::object object_of(const MetadataValue& value) {
    if (const auto* const text = std::get_if<std::string>(&value)) {
        return path_object(*text);
    }
    if (const auto* const number = std::get_if<double>(&value)) {
        return nb::float_(*number);
    }
    if (const auto* const integer = std::get_if<std::int64_t>(&value)) {
        return nb::int_(*integer);
    }
    const auto* const flag = std::get_if<bool>(&value);
    return flag == nullptr ? nb::none() : nb::object(nb::bool_(*flag));
}

}  // namespace

CheckpointMetadata metadata_of(nb::handle rows) {
    SaveOptions options;
    for (const nb::handle row : nb::iter(rows)) {
        const std::string name = word_of(row[0], "metadata");
        options.metadata.emplace_back(name, value_of(nb::object(row[1]), name));
    }
    return store::metadata_of(options, {});
}

nb::dict metadata_object(const CheckpointMetadata& metadata) {
    nb::dict out;
    for (const auto& [name, value] : metadata) {
        out[path_object(name)] = object_of(value);
    }
    return out;
}

}  // namespace penstock::python
