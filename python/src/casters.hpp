// SPDX-License-Identifier: Apache-2.0
// Strings, pairs and vectors on their way to Python, and on that way only.
//
// nanobind's own converters (<nanobind/stl/...>, which nothing here may include) also make them of
// arguments. Those are noexcept and allocate, so that the process ends where memory runs out. With
// these a bound function that takes a std::string or std::vector does not compile: it takes an
// nb::handle, and converts it with arguments.hpp.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

namespace nanobind::detail {

template <>
struct type_caster<std::string> {
    static constexpr auto Name = const_name("str");
    static handle from_cpp(const std::string& text, rv_policy /*policy*/,
                           cleanup_list* /*cleanup*/) noexcept {
        return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
    }
};

template <typename First, typename Second>
struct type_caster<std::pair<First, Second>> {
    static constexpr auto Name = const_name("tuple[") + make_caster<First>::Name +
                                 const_name(", ") + make_caster<Second>::Name + const_name("]");
    static handle from_cpp(const std::pair<First, Second>& pair, rv_policy policy,
                           cleanup_list* cleanup) noexcept {
        const object first = steal(make_caster<First>::from_cpp(pair.first, policy, cleanup));
        const object second = steal(make_caster<Second>::from_cpp(pair.second, policy, cleanup));
        return first.is_valid() && second.is_valid() ? PyTuple_Pack(2, first.ptr(), second.ptr())
                                                     : nullptr;
    }
};

/// Converts vectors of builtin Python values. A vector of a bound class would be copied one by one,
/// which must not throw here either.
template <typename Item>
struct type_caster<std::vector<Item>> {
    static_assert(!is_base_caster_v<make_caster<Item>>, "make the list in the bound function");
    static constexpr auto Name = const_name("list[") + make_caster<Item>::Name + const_name("]");
    static handle from_cpp(const std::vector<Item>& items, rv_policy policy,
                           cleanup_list* cleanup) noexcept {
        object list = steal(PyList_New(static_cast<Py_ssize_t>(items.size())));
        for (std::size_t i = 0; list.is_valid() && i < items.size(); ++i) {
            const handle made = make_caster<Item>::from_cpp(items[i], policy, cleanup);
            if (!made.is_valid() ||
                PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), made.ptr()) != 0) {
                list.reset();
            }
        }
        return list.release();
    }
};

}  // namespace nanobind::detail
