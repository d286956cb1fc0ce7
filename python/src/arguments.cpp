// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include "base/text/units.hpp"
#include "names.hpp"

namespace penstock::python {

std::uint64_t count_of(nb::handle value, const std::string& argument, const char* what,
                       std::uint64_t max) {
    PyObject* index = PyBool_Check(value.ptr()) ? nullptr : PyNumber_Index(value.ptr());
    if (index == nullptr) {
        PyErr_Clear();
        raise_type(argument + ": got " + type_text(value) + "; give " + what +
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

std::uint64_t size_of(nb::handle value, const std::string& argument, const char* what,
                      std::uint64_t max) {
    if (PyUnicode_Check(value.ptr()) == 0) {
        return count_of(value, argument, what, max);
    }
    const auto bytes = amount_in(value, argument, base::parse_bytes);
    if (bytes > max) {
        raise_value(argument + ": got " + shown(value) + "; expected " + what + ", at most " +
                    std::to_string(max) + " bytes");
    }
    return bytes;
}

bool flag_of(nb::handle value, const char* argument) {
    if (PyBool_Check(value.ptr())) {
        return value.ptr() == Py_True;
    }
    const std::string type = type_text(value);
    if (type == "numpy.bool" || type == "numpy.bool_") {
        return truth(value);
    }
    raise_type(std::string(argument) + ": got " + type + "; give True or False");
}

std::string word_of(nb::handle value, const std::string& argument) {
    if (PyUnicode_Check(value.ptr()) == 0) {
        raise_type(argument + ": got " + type_text(value) + "; give a str");
    }
    return text(value);
}

std::vector<std::string> texts_of(const nb::list& words) {
    std::vector<std::string> out;
    out.reserve(nb::len(words));
    for (const nb::handle word : words) {
        out.push_back(text(word));
    }
    return out;
}

Changing changing_of(nb::handle changing) {
    const std::string word = word_of(changing, "changing");
    if (word == "raise") {
        return Changing::kFails;
    }
    if (word != "torn") {
        raise_value("changing: got " + quoted(word) +
                    "; expected 'raise' (a tensor that changes during the save is an error) or "
                    "'torn' (it is saved as it is found)");
    }
    return Changing::kTorn;
}

namespace {

// convert(item, "argument[i]") of each.
template <typename Convert>
auto items_of(nb::handle list, const char* argument, Convert convert) {
    const nb::object iterator = nb::steal(PyObject_GetIter(list.ptr()));
    if (!iterator.is_valid()) {
        PyErr_Clear();
        raise_type(std::string(argument) + ": got " + type_text(list) + "; give a list");
    }
    std::vector<decltype(convert(list, std::string()))> out;
    while (const nb::object item = nb::steal(PyIter_Next(iterator.ptr()))) {
        out.push_back(
            convert(item, std::string(argument) + "[" + std::to_string(out.size()) + "]"));
    }
    if (PyErr_Occurred() != nullptr) {
        throw nb::python_error();
    }
    return out;
}

}  // namespace

std::vector<std::uint64_t> counts_of(nb::handle list, const char* argument, const char* what) {
    return items_of(list, argument, [what](nb::handle item, const std::string& name) {
        return count_of(item, name, what);
    });
}

std::vector<std::pair<std::string, std::string>> word_pairs_of(nb::handle list,
                                                               const char* argument) {
    return items_of(list, argument, [](nb::handle item, const std::string& name) {
        if (PyTuple_Check(item.ptr()) == 0 || PyTuple_Size(item.ptr()) != 2) {
            raise_type(name + ": got " + type_text(item) + "; give a tuple of two str");
        }
        return std::pair(word_of(item[0], name), word_of(item[1], name));
    });
}

}  // namespace penstock::python
