// SPDX-License-Identifier: Apache-2.0
#include "buffer_object.hpp"
#include "names.hpp"

#include <array>
#include <string_view>

namespace penstock::python {

namespace {

// DLPack's codes: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 7 and up 8-bit floats.
constexpr std::array kTypes = {
    ElementType{"uint8", 1, 8, "B"},
    ElementType{"int8", 0, 8, "b"},
    ElementType{"bool", 6, 8, "?"},
    ElementType{"uint16", 1, 16, "H"},
    ElementType{"int16", 0, 16, "h"},
    ElementType{"uint32", 1, 32, "I"},
    ElementType{"int32", 0, 32, "i"},
    ElementType{"uint64", 1, 64, "Q"},
    ElementType{"int64", 0, 64, "q"},
    ElementType{"float16", 2, 16, "e"},
    ElementType{"bfloat16", 4, 16, nullptr},
    ElementType{"float32", 2, 32, "f"},
    ElementType{"float64", 2, 64, "d"},
    ElementType{"complex64", 5, 64, "Zf"},
    ElementType{"complex128", 5, 128, "Zd"},
    ElementType{"float8_e4m3fn", 10, 8, nullptr},
    ElementType{"float8_e4m3fnuz", 11, 8, nullptr},
    ElementType{"float8_e5m2", 12, 8, nullptr},
    ElementType{"float8_e5m2fnuz", 13, 8, nullptr},
    ElementType{"float8_e8m0fnu", 14, 8, nullptr},
};

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

const ElementType& element_type(nb::handle dtype) {
    const std::string name = name_of(dtype);
    for (const ElementType& type : kTypes) {
        if (name == type.name) {
            return type;
        }
    }
    std::string allowed;
    for (const ElementType& type : kTypes) {
        allowed += allowed.empty() ? "" : ", ";
        allowed += type.name;
    }
    raise_value("dtype: " + shown(dtype) + " is not known here; expected one of " + allowed +
                " (as a string, or NumPy's or torch's object)");
}

const ElementType& byte_type() {
    return kTypes.front();
}

}  // namespace penstock::python
