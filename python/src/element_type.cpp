// SPDX-License-Identifier: Apache-2.0
#include "buffer_object.hpp"
#include "names.hpp"

#include <string>
#include <string_view>

namespace penstock::python {

namespace {

// "float32" of everything that means it.
std::string name_of(nb::handle dtype) {
    nb::object source = nb::borrow(dtype);
    if (PyType_Check(dtype.ptr())) {
        source = dtype.attr("__name__");  // numpy.float32, bool
    } else if (!nb::isinstance<nb::str>(dtype) && nb::hasattr(dtype, "name")) {
        source = dtype.attr("name");  // numpy.dtype
        if (nb::hasattr(dtype, "isnative") && !truth(nb::object(dtype.attr("isnative")))) {
            raise_value("dtype: " + shown(dtype) +
                        " has the bytes of its elements in the other order than this machine; "
                        "take its newbyteorder('=') and swap the values (byteswap)");
        }
    }
    std::string name = text(source);
    if (name.starts_with("torch.")) {
        name.erase(0, std::string_view("torch.").size());
    }
    return name;
}

}  // namespace

const ArrayType& element_type(nb::handle dtype) {
    const std::string name = name_of(dtype);
    std::string allowed;
    for (const ArrayType& type : tensor::kElementTypes) {
        if (type.dlpack < 0) {
            continue;
        }
        if (name == type.torch) {
            return type;
        }
        allowed += allowed.empty() ? "" : ", ";
        allowed += type.torch;
    }
    raise_value("dtype: " + shown(dtype) + " is not known here; expected one of " + allowed +
                " (as a string, or NumPy's or torch's object)");
}

const ArrayType& byte_type() {
    return tensor::row_of(tensor::ElementType::kU8);
}

}  // namespace penstock::python
