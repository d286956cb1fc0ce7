// SPDX-License-Identifier: Apache-2.0
#include "base/planted.hpp"
#include "errors.hpp"
#include "file_object.hpp"
#include "format/grammar.hpp"
#include "format/rebuilt.hpp"
#include "format/torch_types.hpp"
#include "format/unread.hpp"
#include "names.hpp"
#include "state.hpp"
#include "state/state_views.hpp"
#include "tensor/element_type.hpp"
#include "torch_objects.hpp"
#include "unread.hpp"
#include "without_collection.hpp"

#include <penstock/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

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

constexpr std::size_t kUnreadMax = 65536;                 // place-holders of a state
constexpr std::size_t kVisitsMax = std::size_t{1} << 22;  // of values in them
constexpr std::size_t kNameBytesMax = 1000;               // of a tensor in one

[[noreturn]] void too_many(std::string_view what) {
    throw Error(ErrorCode::kUnsupported, 0, "load", {}, kNoOffset,
                fmt::format("load: the state has {}; load parts of it by names", what));
}

class Maker {
public:
    Maker(const format::ValueTree& tree, nb::handle storages, bool pickle, bool data)
        : tree_(tree),
          storages_(storages),
          pickle_(pickle),
          data_(data),
          made_(tree.values.size()) {}

    nb::object run() {
        const WithoutCollection making;
        if (data_) {
            align_storages();
        }
        return value(tree_.root);
    }

private:
    // Storages lie in memory as they do in the file: anywhere in one of torch before 1.6. On some
    // complex128 that are not aligned torch ends the process, so their storages are copied.
    void align_storages() {
        for (const format::TensorValue& t : tree_.tensors) {
            const std::uint64_t width = tensor::row_of(t.type).torch_bytes();
            if (width <= sizeof(std::uint64_t)) {
                continue;
            }
            const nb::object storage = storages_[t.storage];
            const nb::object device = storage.attr("device").attr("type");
            if (PyUnicode_CompareWithASCIIString(device.ptr(), "cpu") == 0 &&
                nb::cast<std::uintptr_t>(storage.attr("data_ptr")()) % width != 0) {
                storages_[t.storage] = storage.attr("clone")();
            }
        }
    }

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
        if (depth_ > format::kNestingMax + 1) {
            too_many("values that are nested too deep");
        }
        ++depth_;
        nb::object object = container(id, v);
        if (!object.is_valid()) {
            object = scalar(id, v);
        }
        --depth_;
        made_[id] = object;
        if (v.attributes != format::kNoValue && v.kind != ValueKind::kOrderedDict) {
            set_attributes(object, value(v.attributes));
        }
        return object;
    }

    nb::object pickled(const nb::object& bytes) {
        if (!unpickler_.is_valid()) {
            unpickler_ = nb::module_::import_("penstock._state.pickled").attr("unpickler")(pickle_);
        }
        return unpickler_(bytes);
    }

    static void set_attributes(const nb::object& object, const nb::object& own) {
        for (const auto [name, item] : nb::cast<nb::dict>(own)) {
            if (PyObject_SetAttr(object.ptr(), name.ptr(), item.ptr()) != 0) {
                throw nb::python_error();
            }
        }
    }

    nb::object scalar(ValueId id, const Value& v) {
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
                return constant(id, v.text);
            case ValueKind::kDevice:
                return torch().attr("device")(v.text);
            case ValueKind::kTensor:
                return tensor(id, tree_.tensors[static_cast<std::size_t>(v.integer)]);
            case ValueKind::kRebuilt:
                return rebuilt(v);
            case ValueKind::kNumpyScalar:
            case ValueKind::kNumpyArray:
                return numpy(v);
            case ValueKind::kPickled:
                return pickled(bytes_of(v.text));
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
            case ValueKind::kPerRank:  // by rank: only to look at, before a load takes its own
                return fill(id, v, nb::dict());
            case ValueKind::kUnread:
                return unread(id, v);
            default:
                return {};
        }
    }

    // Makes the outer one of place-holders in one another.
    nb::object unread(ValueId id, const Value& v) {
        if (places_.empty()) {
            for (format::UnreadPlace& one : format::unread_in(tree_, kUnreadMax)) {
                places_.emplace(one.id, std::move(one.place));
            }
        }
        const auto place = places_.find(id);
        // One in the attributes of a tensor of another one has the place of that.
        const std::string where = place != places_.end() ? place->second : outer_;
        if (where.empty() || ++unread_ > kUnreadMax) {
            too_many(fmt::format("more than {} objects that are not read", kUnreadMax));
        }
        nb::list rows;
        std::string name;
        std::string step;
        std::unordered_set<ValueId> seen;
        const std::string before = std::exchange(outer_, where);
        add_rows(id, name, step, seen, rows);
        outer_ = before;
        return unread_object(v, where, rows);
    }

    // Adds (name, place, tensor) of each tensor in a place-holder, from there on.
    void add_rows(ValueId id, std::string& name, std::string& place,
                  std::unordered_set<ValueId>& seen, nb::list& rows) {
        const Value& v = tree_.at(id);
        if (v.kind == ValueKind::kTensor) {
            rows.append(nb::make_tuple(unicode(name), unicode(place), value(id)));
            return;
        }
        const bool dict = format::is_dict(v.kind);
        if (!(dict || v.kind == ValueKind::kList || v.kind == ValueKind::kTuple) ||
            depth_ > format::kNestingMax || !seen.insert(id).second) {
            return;
        }
        visits_ += v.items.size() + 1;
        if (visits_ > kVisitsMax) {
            too_many("too many values in objects that are not read");
        }
        const std::size_t name_bytes = name.size();
        const std::size_t place_bytes = place.size();
        const std::size_t step = dict ? 2 : 1;
        ++depth_;
        for (std::size_t i = 0; i + step <= v.items.size(); i += step) {
            if (name.size() <= kNameBytesMax) {
                name += name.empty() ? "" : ".";
                name += dict ? state::key_text(tree_.at(v.items[i])) : fmt::to_string(i);
                if (dict) {
                    format::append_key(place, tree_, v.items[i]);
                } else {
                    place += fmt::format("[{}]", i);
                }
            }
            add_rows(v.items[i + step - 1], name, place, seen, rows);
            name.resize(name_bytes);
            place.resize(place_bytes);
        }
        --depth_;
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

    nb::object constant(ValueId id, const std::string& name) {
        nb::object& known = constants_[name];
        if (!known.is_valid()) {
            try {
                known = torch_constant(torch(), name, format::place_of(tree_, id));
            } catch (const Error&) {
                if (data_) {
                    throw;
                }
                known = without_data();  // the others are looked at, and may be loaded
                lacking_.insert(name);
            }
        }
        return known;
    }

    nb::object without_data() {
        return torch().attr("empty")(nb::make_tuple(0), nb::arg("device") = "meta");
    }

    nb::object rebuilt(const Value& v) {
        const format::RebuiltRow& row = *format::rebuilt_tagged(v.text);
        if (!data_) {  // what is made looks into the data
            return without_data();
        }
        std::vector<nb::object> parts;
        for (const ValueId part : v.items) {
            parts.push_back(value(part));
        }
        if (row.rebuilt != format::Rebuilt::kStorage) {
            return torch_object(torch(), row, parts);
        }
        // As in torch.load, one storage is one object.
        const auto whole = static_cast<std::size_t>(tree_.at(v.items[0]).integer);
        nb::object& known = bare_[tree_.tensors[whole].storage];
        if (!known.is_valid()) {
            known = torch_object(torch(), row, parts);
        }
        return known;
    }

    nb::object tensor(ValueId id, const format::TensorValue& t) {
        const format::TorchType* type = format::torch_type(t.type);
        const nb::object dtype = constant(id, type->torch);
        if (lacking_.count(type->torch) != 0) {
            return dtype;
        }
        nb::object storage = storages_[t.storage];
        nb::object out = torch().attr("empty")(nb::make_tuple(0), nb::arg("dtype") = dtype,
                                               nb::arg("device") = storage.attr("device"));
        out = out.attr("set_")(storage, t.offset, numbers(t.shape), numbers(t.strides));
        if (t.conjugated && !base::planted("lost_conjugate")) {
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
    const bool pickle_;
    const bool data_;
    std::unordered_map<ValueId, std::string> places_;  // of place-holders
    std::string outer_;                                // the place of the one that is being made
    std::size_t unread_ = 0;                           // place-holders that were made
    std::size_t visits_ = 0;                           // of values in them
    int depth_ = 0;
    std::vector<nb::object> made_;
    nb::object unpickler_;
    std::unordered_map<std::string, nb::object> constants_;
    std::unordered_set<std::string> lacking_;             // of them, by the torch at hand
    std::unordered_map<std::uint32_t, nb::object> bare_;  // storages that are values
    nb::object torch_, collections_;
};

}  // namespace

namespace {

// Torch raises these for values that it does not take: a file may have any.
bool is_of_torch(const nb::python_error& error) {
    static constexpr PyObject* const* kKinds[] = {&PyExc_RuntimeError, &PyExc_TypeError,
                                                  &PyExc_ValueError, &PyExc_AttributeError,
                                                  &PyExc_OverflowError};
    return std::any_of(std::begin(kKinds), std::end(kKinds),
                       [&](PyObject* const* kind) { return error.matches(*kind); });
}

std::string first_line(const nb::python_error& error) {
    constexpr std::size_t kLineBytesMax = 200;
    const std::string all = text(error.value());
    const std::string line = all.substr(0, std::min(all.find('\n'), kLineBytesMax));
    return line.empty() ? type_text(error.value()) : line;
}

}  // namespace

nb::object objects_of(const format::ValueTree& tree, nb::handle storages, bool pickle,
                      nb::handle path, bool data) {
    std::string why;
    try {
        return Maker(tree, storages, pickle, data).run();
    } catch (nb::python_error& error) {
        if (!is_of_torch(error) || about_a_file(error)) {
            throw;
        }
        why = first_line(error);
    } catch (const std::bad_cast& error) {  // a number that is out of range, or none
        why = error.what();
    }
    const std::string file = path_bytes(path, "path", "");
    throw Error(
        ErrorCode::kUnsupported, 0, "load", file, kNoOffset,
        fmt::format("load: '{}': it holds an object that cannot be made here: {}; torch.load "
                    "may say more of it",
                    file, why));
}

}  // namespace penstock::python
