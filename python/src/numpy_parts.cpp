// SPDX-License-Identifier: Apache-2.0
#include "numpy_parts.hpp"

#include "format/numpy/numpy_types.hpp"
#include "names.hpp"

namespace penstock::python {

std::string numpy_data(nb::handle scalar, std::string_view type) {
    if (type[1] == 'U') {
        return raw(checked(PyUnicode_AsEncodedString(scalar.ptr(), "utf-32-le", "surrogatepass")));
    }
    return raw(type[1] == 'S' ? nb::borrow(scalar) : nb::object(scalar.attr("tobytes")()));
}

std::string wrong_with_numpy(nb::handle object, bool is_array) {
    const nb::object dtype = object.attr("dtype");
    const std::string type = text(nb::object(dtype.attr("str")));
    if (!format::numpy_item_bytes(type)) {
        return "NumPy data of the type " + type + " cannot be saved; save it as another type";
    }
    if (!nb::object(dtype.attr("metadata")).is_none()) {
        return "its NumPy type has metadata (" + shown(dtype.attr("metadata")) +
               "), which would be lost; save them next to it";
    }
    if (!is_array && !object.type().is(nb::object(dtype.attr("type")))) {
        return "a " + type_text(object) + " cannot be saved: save the NumPy scalar that it is";
    }
    return {};
}

}  // namespace penstock::python
