// SPDX-License-Identifier: Apache-2.0
// What default= gave for objects of a state, to find keys that differ now and are equal when they
// are loaded.
#pragma once

#include "names.hpp"
#include "nanobind.hpp"

#include <string>
#include <unordered_map>
#include <utility>

namespace penstock::python {

class Replaced {
public:
    void add(nb::handle object, nb::handle made) {
        made_.insert_or_assign(object.ptr(), std::pair(nb::borrow(object), nb::borrow(made)));
    }

    /// What is wrong with the keys of a dict, or the elements of a set; empty if nothing is.
    [[nodiscard]] std::string wrong_with(nb::handle keys) const {
        if (made_.empty()) {
            return {};
        }
        const nb::set loaded;
        for (const nb::handle key : nb::iter(keys)) {
            const nb::object made = as_loaded(key);
            const int known = PySet_Contains(loaded.ptr(), made.ptr());
            if (known < 0 || (known == 0 && PySet_Add(loaded.ptr(), made.ptr()) != 0)) {
                PyErr_Clear();  // no key; the grammar refuses it, with its place
                return {};
            }
            if (known == 1) {
                return "with what default gave, two of its keys or elements are " + shown(made) +
                       ", and one of them would be lost; let default give another value for each";
            }
        }
        return {};
    }

private:
    // NOLINTNEXTLINE(misc-no-recursion): state_of.cpp has limited the depth.
    [[nodiscard]] nb::object as_loaded(nb::handle key) const {
        if (const auto known = made_.find(key.ptr()); known != made_.end()) {
            return as_loaded(known->second.second);
        }
        const bool frozen = PyFrozenSet_CheckExact(key.ptr()) != 0;
        if (!frozen && PyTuple_CheckExact(key.ptr()) == 0) {
            return nb::borrow(key);
        }
        nb::list items;
        for (const nb::handle item : nb::iter(key)) {
            items.append(as_loaded(item));
        }
        nb::object out =
            nb::steal(frozen ? PyFrozenSet_New(items.ptr()) : PySequence_Tuple(items.ptr()));
        if (!out.is_valid()) {
            PyErr_Clear();  // with an element that is no key
            return nb::borrow(key);
        }
        return out;
    }

    // Both are kept, so that no other object has their address.
    std::unordered_map<PyObject*, std::pair<nb::object, nb::object>> made_;
};

}  // namespace penstock::python
