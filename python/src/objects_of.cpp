// SPDX-License-Identifier: Apache-2.0
#include "format/grammar.hpp"
#include "format/torch_types.hpp"
#include "names.hpp"
#include "state.hpp"
#include "without_collection.hpp"

#include <cstdint>
#include <string>

namespace penstock::python {

namespace {

using format::Value;
using format::ValueId;
using format::ValueKind;

nb::object unicode(const std::string& text) {
    return checked(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
}

nb::object bytes_of(const std::string& text) {
    return checked(PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

class Maker {
public:
    Maker(const format::ValueTree& tree, nb::handle storages, nb::handle unpickle)
        : tree_(tree), storages_(storages), unpickle_(unpickle), made_(tree.values.size()) {}

    nb::object run() {
        const WithoutCollection making;
        return value(tree_.root);
    }

private:
    const nb::object& torch() {
        if (!torch_.is_valid()) {
            torch_ = nb::module_::import_("torch");
        }
        return torch_;
    }

    nb::object value(ValueId id) {
        if (made_[id].is_valid()) {
            return made_[id];
        }
        const Value& v = tree_.at(id);
        nb::object object = container(id, v);
        if (!object.is_valid()) {
            object = scalar(v);
        }
        made_[id] = object;
        return object;
    }

    nb::object scalar(const Value& v) {
        switch (v.kind) {
            case ValueKind::kBool:
                return nb::bool_(v.flag);
            case ValueKind::kInt:
                return nb::int_(v.integer);
            case ValueKind::kBigInt:
                return nb::module_::import_("builtins")
                    .attr("int")
                    .attr("from_bytes")(bytes_of(v.text), "little", nb::arg("signed") = true);
            case ValueKind::kFloat:
                return nb::float_(v.real);
            case ValueKind::kComplex:
                return checked(PyComplex_FromDoubles(v.real, v.imaginary));
            case ValueKind::kString:
                return unicode(v.text);
            case ValueKind::kBytes:
                return bytes_of(v.text);
            case ValueKind::kByteArray:
                return checked(PyByteArray_FromStringAndSize(
                    v.text.data(), static_cast<Py_ssize_t>(v.text.size())));
            case ValueKind::kDtype:
                return torch().attr(v.text.c_str());
            case ValueKind::kDevice:
                return torch().attr("device")(v.text);
            case ValueKind::kTensor:
                return tensor(tree_.tensors[static_cast<std::size_t>(v.integer)]);
            case ValueKind::kNumpyScalar:
            case ValueKind::kNumpyArray:
                return numpy(v);
            case ValueKind::kPickled:
                return unpickle_(bytes_of(v.text));
            default:
                return nb::none();
        }
    }

    // Lists and dicts are known before they are filled: they may contain themselves.
    nb::object container(ValueId id, const Value& v) {
        switch (v.kind) {
            case ValueKind::kList:
                return list(id, v);
            case ValueKind::kTuple: {
                const nb::object made = tuple(v);
                // One that contains itself (by way of a list) was made below.
                return made_[id].is_valid() ? made_[id] : made;
            }
            case ValueKind::kSize:
                return torch().attr("Size")(tuple(v));
            case ValueKind::kSet:
            case ValueKind::kFrozenSet: {
                const nb::object items = tuple(v);
                return checked(v.kind == ValueKind::kSet ? PySet_New(items.ptr())
                                                         : PyFrozenSet_New(items.ptr()));
            }
            case ValueKind::kDict:
                return fill(id, v, nb::dict());
            case ValueKind::kOrderedDict:
                return fill(id, v, collections().attr("OrderedDict")());
            case ValueKind::kDefaultDict:
                return fill(id, v, collections().attr("defaultdict")(factory(v.text)));
            case ValueKind::kCounter:
                return fill(id, v, collections().attr("Counter")());
            default:
                return {};
        }
    }

    const nb::object& collections() {
        if (!collections_.is_valid()) {
            collections_ = nb::module_::import_("collections");
        }
        return collections_;
    }

    nb::object factory(const std::string& name) {
        if (name.empty()) {
            return nb::none();
        }
        const format::Factory* known = format::factory_named(name);
        return nb::module_::import_(std::string(known->module).c_str()).attr(name.c_str());
    }

    nb::object list(ValueId id, const Value& v) {
        nb::list out;
        made_[id] = out;
        for (const ValueId item : v.items) {
            out.append(value(item));
        }
        return out;
    }

    nb::object tuple(const Value& v) {
        nb::list out;
        for (const ValueId item : v.items) {
            out.append(value(item));
        }
        return checked(PyList_AsTuple(out.ptr()));
    }

    nb::object fill(ValueId id, const Value& v, nb::object dict) {
        made_[id] = dict;
        for (std::size_t i = 0; i + 1 < v.items.size(); i += 2) {
            const nb::object key = value(v.items[i]);
            const nb::object item = value(v.items[i + 1]);
            if (PyObject_SetItem(dict.ptr(), key.ptr(), item.ptr()) != 0) {
                throw nb::python_error();
            }
        }
        if (v.attributes != format::kNoValue) {
            nb::object own = dict.attr("__dict__");
            own.attr("update")(value(v.attributes));
        }
        return dict;
    }

    static nb::object numbers(const std::vector<std::uint64_t>& list) {
        nb::list out;
        for (const std::uint64_t n : list) {
            out.append(n);
        }
        return checked(PyList_AsTuple(out.ptr()));
    }

    nb::object tensor(const format::TensorValue& t) {
        const format::TorchType* type = format::torch_type(t.type);
        nb::object storage = storages_[t.storage];
        nb::object out = torch().attr("empty")(
            nb::make_tuple(0), nb::arg("dtype") = torch().attr(std::string(type->torch).c_str()),
            nb::arg("device") = storage.attr("device"));
        out = out.attr("set_")(storage, t.offset, numbers(t.shape), numbers(t.strides));
        if (t.conjugated) {
            torch().attr("_C").attr("_set_conj")(out, true);
        }
        if (t.negated) {
            torch().attr("_C").attr("_set_neg")(out, true);
        }
        if (t.parameter) {
            return torch().attr("nn").attr("Parameter")(out, t.requires_grad);
        }
        if (t.requires_grad) {
            out.attr("requires_grad_")();
        }
        return out;
    }

    nb::object numpy(const Value& v) {
        const nb::module_ numpy = nb::module_::import_("numpy");
        const nb::object dtype = numpy.attr("dtype")(v.text);
        const nb::bytes data(v.data.data(), v.data.size());
        if (v.kind == ValueKind::kNumpyScalar) {
            if (v.text[1] == 'U') {  // an array would lose zeros at the end
                return numpy.attr("str_")(data.attr("decode")("utf-32-le", "surrogatepass"));
            }
            return v.text[1] == 'S' ? numpy.attr("bytes_")(data)
                                    : numpy.attr("frombuffer")(data, dtype)[0];
        }
        const nb::object shape = tuple(v);
        const char* order = v.flag ? "F" : "C";
        if (v.data.empty()) {  // of which frombuffer makes none; zeros() makes U1 of U0
            return numpy.attr("ndarray")(shape, dtype, nb::arg("order") = order);
        }
        return numpy.attr("frombuffer")(data, dtype)
            .attr("reshape")(shape, nb::arg("order") = order)
            .attr("copy")(nb::arg("order") = order);
    }

    const format::ValueTree& tree_;
    nb::handle storages_;
    nb::handle unpickle_;
    std::vector<nb::object> made_;
    nb::object torch_, collections_;
};

}  // namespace

nb::object objects_of(const format::ValueTree& tree, nb::handle storages, nb::handle unpickle) {
    return Maker(tree, storages, unpickle).run();
}

}  // namespace penstock::python
