// SPDX-License-Identifier: Apache-2.0
#include "borrowed_memory.hpp"
#include "collected.hpp"
#include "format/grammar.hpp"
#include "format/pickle/pickled.hpp"
#include "format/rebuilt.hpp"
#include "format/torch_types.hpp"
#include "names.hpp"
#include "numpy_parts.hpp"
#include "plain_values.hpp"
#include "replaced.hpp"
#include "state.hpp"
#include "stream/checksum.hpp"
#include "torch_objects.hpp"
#include "torch_storages.hpp"
#include "unread.hpp"
#include "without_collection.hpp"

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock::python {

namespace {

using format::Value;
using format::ValueId;
using format::ValueKind;

class Builder {
public:
    Builder(nb::handle other, bool together, std::optional<SavingRank> rank)
        : storages_(state_.tree, state_.storages, together), rank_(rank), other_(other) {
        if (nb::object torch = imported("torch"); !torch.is_none()) {
            tensor_ = torch.attr("Tensor");
            parameter_ = torch.attr("nn").attr("Parameter");
            size_ = torch.attr("Size");
            dtype_ = torch.attr("dtype");
            device_ = torch.attr("device");
            strided_ = torch.attr("strided");
            layout_ = torch.attr("layout");
            scheme_ = torch.attr("qscheme");
            class_ = nb::borrow(nb::object(torch.attr("FloatTensor")).type());
            storage_ = torch.attr("storage").attr("TypedStorage");
        }
        if (nb::object nested = imported("torch.nested._internal.nested_tensor");
            !nested.is_none()) {
            jagged_ = nested.attr("NestedTensor");
        }
        if (nb::object numpy = imported("numpy"); !numpy.is_none()) {
            array_ = numpy.attr("ndarray");
            scalar_ = numpy.attr("generic");
            contiguous_ = numpy.attr("ascontiguousarray");
        }
        const nb::module_ collections = nb::module_::import_("collections");
        ordered_ = collections.attr("OrderedDict");
        default_ = collections.attr("defaultdict");
        counter_ = collections.attr("Counter");
        pickled_ = nb::module_::import_("penstock._state.pickled").attr("Pickled");
        per_rank_ = nb::module_::import_("penstock._state.per_rank").attr("PerRank");
        if (rank) {
            const nb::module_ slices = nb::module_::import_("penstock._state.slices");
            is_part_ = slices.attr("is_part");
            parts_ = slices.attr("saved_parts");
        }
    }

    State run(nb::handle object) {
        const WithoutCollection walking;  // each tensor gets an object for its storage
        state_.tree.root = value(object, 0);
        storages_.fetch();
        return std::move(state_);
    }

private:
    [[nodiscard]] std::string place() const {
        std::string path = "state";
        for (const nb::handle step : path_) {
            if (PyUnicode_CheckExact(step.ptr()) != 0 || PyLong_CheckExact(step.ptr()) != 0) {
                path += "[" + shown(step) + "]";
            } else {
                path += "[...]";
            }
        }
        return path;
    }
    [[noreturn]] void refuse(const std::string& why) const {
        raise_type("save: " + place() + ": " + why);
    }

    static bool is(nb::handle object, const nb::object& type) {
        return type.is_valid() && object.type().is(type);
    }
    static bool is_kind_of(nb::handle object, const nb::object& type) {
        return type.is_valid() && PyObject_IsInstance(object.ptr(), type.ptr()) == 1;
    }

    ValueId add(ValueKind kind, std::string text = {}) {
        Value v;
        v.kind = kind;
        v.text = std::move(text);
        return state_.tree.add(std::move(v));
    }

    // An error names the tensor.
    template <typename Place>
    auto placed(const Place& at) const {
        try {
            return at();
        } catch (const Error& error) {
            throw Error(error.reason(), error.system_errno(), "save", "", kNoOffset,
                        "save: " + place() + ": " + error.what());
        }
    }

    ValueId value(nb::handle o, int depth) {
        PyObject* p = o.ptr();
        if (auto plain = plain_value(o)) {
            return state_.tree.add(std::move(*plain));
        }
        if (const auto known = seen_.find(p); known != seen_.end()) {
            return known->second;
        }
        if (depth > format::kNestingMax) {
            refuse("it is nested deeper than " + std::to_string(format::kNestingMax) + " levels");
        }
        const ValueId id = composed(o, depth);
        // Temporary objects have addresses that come again.
        seen_.emplace(p, id);
        keep_.push_back(nb::borrow(o));
        return id;
    }

    ValueId composed(nb::handle o, int depth) {
        PyObject* p = o.ptr();
        if (is(o, tensor_) || is(o, parameter_)) {
            const std::string wrong = wrong_with_tensor(o);
            return wrong.empty() ? any_tensor(o, depth) : instead(o, depth, wrong);
        }
        if (is(o, jagged_)) {
            return jagged(o, depth);
        }
        if (PyDict_CheckExact(p) || is(o, ordered_) || is(o, default_) || is(o, counter_)) {
            return dict(o, depth);
        }
        if (PyList_CheckExact(p)) {
            return items(o, ValueKind::kList, depth);
        }
        if (PyTuple_CheckExact(p) || is(o, size_)) {
            return tuple(o, is(o, size_) ? ValueKind::kSize : ValueKind::kTuple, depth);
        }
        if (o.type().is(nb::handle(reinterpret_cast<PyObject*>(&PySet_Type)))) {
            return items(o, ValueKind::kSet, depth);
        }
        if (PyFrozenSet_CheckExact(p)) {
            return items(o, ValueKind::kFrozenSet, depth);
        }
        if (PyByteArray_CheckExact(p)) {
            return add(ValueKind::kByteArray,
                       std::string(PyByteArray_AsString(p),
                                   static_cast<std::size_t>(PyByteArray_Size(p))));
        }
        if (is(o, storage_) && (format::torch_type_named(dtype_name(o)) != nullptr ||
                                format::held_type_named(dtype_name(o)) != nullptr)) {
            return rebuilt(torch_parts(imported("torch"), o), depth);
        }
        if (is(o, dtype_) || is(o, scheme_) || is(o, layout_)) {
            return constant(o, text(o));
        }
        if (tensor_.is_valid() && (o.is(tensor_) || is(o, class_))) {
            return constant(o, text(o.attr("__module__")) + "." + text(o.attr("__name__")));
        }
        if (is(o, device_)) {
            return add(ValueKind::kDevice, text(o));
        }
        if (is_kind_of(o, scalar_) || is(o, array_)) {
            const std::string wrong = wrong_with_numpy(o, is(o, array_));
            return wrong.empty() ? numpy(o) : instead(o, depth, wrong);
        }
        if (is(o, pickled_)) {
            return add(ValueKind::kPickled, raw(nb::object(o.attr("data"))));
        }
        if (is(o, per_rank_)) {
            return per_rank(o, depth);
        }
        if (is_unread(o)) {
            throw Error(ErrorCode::kUnsupported, 0, "save", {}, kNoOffset,
                        "save: " + place() + ": " + use_of_unread(o));
        }
        if (parts_.is_valid() && truth(nb::object(is_part_(o)))) {
            return part(o, depth);
        }
        if (other_.is_none() && is_kind_of(o, tensor_)) {
            static_cast<void>(o.attr("data_ptr")());  // a weight that is not in memory says so
        }
        return instead(o, depth,
                       "a " + type_text(o) +
                           " cannot be saved: save tensors, numbers, strings, bytes and "
                           "containers of them (an object's state_dict() is one)");
    }

    // Saves what default makes of an object, or refuses it and says `why`. The result may
    // be such an object again: the limit on depth ends that.
    ValueId instead(nb::handle o, int depth, const std::string& why) {
        if (other_.is_none()) {
            refuse(
                why +
                ", or give default=, which makes what can be saved of it (default=penstock.Pickled "
                "pickles it)");
        }
        const nb::object made = other_(o);
        if (made.is(o)) {
            refuse("default gave back the " + type_text(o) +
                   " that it was given; expected "
                   "tensors, numbers, strings, bytes and containers of them");
        }
        replaced_.add(o, made);
        return value(made, depth + 1);
    }

    void refuse_repeated(nb::handle keys) const {
        if (const std::string why = replaced_.wrong_with(keys); !why.empty()) {
            refuse(why);
        }
    }

    ValueId step(nb::handle key, nb::handle object, int depth) {
        path_.push_back(key);
        const ValueId id = value(object, depth + 1);
        path_.pop_back();
        return id;
    }

    ValueId items(nb::handle o, ValueKind kind, int depth) {
        const ValueId id = add(kind);
        seen_.emplace(o.ptr(), id);  // a list may contain itself
        std::vector<ValueId> made;
        const nb::object list = checked(PySequence_List(o.ptr()));
        const auto count = static_cast<Py_ssize_t>(nb::len(list));
        for (Py_ssize_t i = 0; i < count; ++i) {
            const nb::object index = nb::int_(i);
            made.push_back(step(index, nb::handle(PyList_GetItem(list.ptr(), i)), depth));
        }
        if (kind == ValueKind::kSet || kind == ValueKind::kFrozenSet) {
            refuse_repeated(list);
        }
        state_.tree.values[id].items = std::move(made);
        return id;
    }

    // Checked here, where what is in it has a name; the rest of the grammar when it is written.
    ValueId tuple(nb::handle o, ValueKind kind, int depth) {
        const ValueId id = items(o, kind, depth);
        if (kind == ValueKind::kSize) {
            if (const std::string wrong = format::wrong_with(state_.tree, state_.tree.values[id]);
                !wrong.empty()) {
                refuse("this torch.Size cannot be saved: " + wrong);
            }
        }
        return id;
    }

    ValueId dict(nb::handle o, int depth) {
        const bool ordered = is(o, ordered_);
        const bool factory = is(o, default_);
        const bool counter = is(o, counter_);
        const ValueId id = add(ordered   ? ValueKind::kOrderedDict
                               : factory ? ValueKind::kDefaultDict
                               : counter ? ValueKind::kCounter
                                         : ValueKind::kDict);
        seen_.emplace(o.ptr(), id);
        if (factory) {
            const nb::object made_by = o.attr("default_factory");
            const auto name = factory_name(made_by);
            if (!name) {
                refuse("its default_factory is " + shown(made_by) +
                       "; built-in types can be saved (list, dict, int, ...)");
            }
            state_.tree.values[id].text = *name;
        }
        std::vector<ValueId> made;
        made.reserve(2 * nb::len(o));
        if (PyDict_CheckExact(o.ptr())) {
            const Py_ssize_t count = PyDict_Size(o.ptr());
            Py_ssize_t at = 0;
            PyObject* key = nullptr;
            PyObject* item = nullptr;
            while (PyDict_Next(o.ptr(), &at, &key, &item) != 0) {
                // Owned: other threads, and Python's code in what is saved, may change the dict.
                const nb::object own_key = nb::borrow(key);
                const nb::object own_item = nb::borrow(item);
                entry(own_key, own_item, depth, made);
                if (PyDict_Size(o.ptr()) != count) {
                    throw std::runtime_error(
                        "save: a dict of the state was changed while it was saved; let the save "
                        "return first, or save a copy of the dict");
                }
            }
        } else {  // an OrderedDict has an order of its own
            const nb::object pairs = checked(PySequence_List(nb::object(o.attr("items")()).ptr()));
            const auto count = static_cast<Py_ssize_t>(nb::len(pairs));
            for (Py_ssize_t i = 0; i < count; ++i) {
                PyObject* pair = PyList_GetItem(pairs.ptr(), i);
                entry(PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), depth, made);
            }
        }
        refuse_repeated(o);
        state_.tree.values[id].items = std::move(made);
        if (ordered) {
            attributes(o, id, depth);
        } else if (counter && nb::len(nb::object(o.attr("__dict__"))) > 0) {
            refuse(
                "the Counter has attributes of its own, which would be lost; save them next to it");
        }
        return id;
    }

    void entry(nb::handle key, nb::handle item, int depth, std::vector<ValueId>& made) {
        const ValueId key_id = step(key, key, depth);
        if (!format::may_be_key(state_.tree, key_id)) {
            path_.push_back(key);
            refuse("this key is a " + type_text(key) +
                   "; keys are strings, numbers, and short tuples of them");
        }
        made.push_back(key_id);
        made.push_back(step(key, item, depth));
    }

    // Attributes of the object: `_metadata` of every state_dict().
    void attributes(nb::handle o, ValueId id, int depth) {
        own_dict(nb::getattr(o, "__dict__", nb::dict()), id, depth);
    }
    void own_dict(nb::object own, ValueId id, int depth) {
        own = in_jagged_ ? without_compile_hints(own) : own;
        if (nb::len(own) == 0) {
            return;
        }
        const ValueId made = step(nb::str("__dict__"), own, depth);
        state_.tree.values[id].attributes = made;
    }

    static std::string dtype_name(nb::handle o) {
        return text(nb::object(o.attr("dtype"))).substr(6);
    }

    // `name`: "torch.float32".
    ValueId constant(nb::handle o, const std::string& name) {
        if (format::torch_constant(name.substr(6)) == format::Constant::kNone) {
            refuse("the " + type_text(o) + " " + name + " cannot be saved");
        }
        return add(ValueKind::kDtype, name.substr(6));
    }

    // Null for a type that a state cannot hold.
    const format::TorchType* type_of(nb::handle tensor) {
        static const Name kDtype("dtype");
        const nb::object dtype = get(tensor, kDtype);
        const auto [known, fresh] = types_.try_emplace(dtype.ptr(), nullptr);
        if (fresh) {
            keep_.push_back(dtype);
            known->second = format::torch_type_named(text(dtype).substr(6));
        }
        return known->second;
    }

    // Empty for a tensor that a state can hold.
    std::string wrong_with_tensor(nb::handle o) {
        static const Name kLayout("layout");
        static const Name kIsMeta("is_meta");
        const nb::object layout = get(o, kLayout);
        if (!layout.is(strided_) && format::sparse_of_layout(text(layout).substr(6)) == nullptr) {
            return "a tensor of layout " + text(layout) +
                   " cannot be saved; save its dense form, or its parts";
        }
        if (type_of(o) == nullptr && format::held_type_named(dtype_name(o)) == nullptr) {
            return "a tensor of torch." + dtype_name(o) +
                   " cannot be saved; save it as another type";
        }
        if (truth(get(o, kIsMeta))) {
            return "the tensor is on the meta device and has no data; give one that has (load it "
                   "first)";
        }
        return {};
    }

    // A tensor of any kind, with its attributes.
    ValueId any_tensor(nb::handle o, int depth) {
        static const Name kDict("__dict__");
        static const Name kLayout("layout");
        static const Name kIsNested("is_nested");
        const bool dense =
            get(o, kLayout).is(strided_) && type_of(o) != nullptr && !truth(get(o, kIsNested));
        const ValueId id = dense ? tensor(o) : rebuilt(torch_parts(imported("torch"), o), depth);
        nb::object own = get(o, kDict);
        if (!dense && !is(o, parameter_) && truth(o.attr("requires_grad"))) {
            own = checked(PyDict_Copy(own.ptr()));
            own["requires_grad"] = true;
        }
        own_dict(own, id, depth);
        return id;
    }

    ValueId jagged(nb::handle o, int depth) {
        const TorchParts made = jagged_parts(o);
        in_jagged_ = true;
        const ValueId id = rebuilt(made, depth);
        in_jagged_ = false;
        for (const ValueId part : std::vector<ValueId>(state_.tree.at(id).items)) {
            format::drop_compile_hints(state_.tree, part);
        }
        own_dict(made.own, id, depth);
        return id;
    }

    ValueId rebuilt(const TorchParts& made, int depth) {
        std::vector<ValueId> parts;
        for (const nb::object& part : made.parts) {
            parts.push_back(step(part, part, depth));
        }
        const ValueId id = add(ValueKind::kRebuilt, made.tag);
        state_.tree.values[id].items = std::move(parts);
        return id;
    }

    ValueId tensor(nb::handle o) {
        static const Name kShape("shape");
        static const Name kStride("stride");
        static const Name kOffset("storage_offset");
        static const Name kRequiresGrad("requires_grad");
        static const Name kConjugated("is_conj");
        static const Name kNegated("is_neg");
        format::TensorValue t;
        t.type = type_of(o)->type;
        t.storage = placed([&] { return storages_.of(o); });
        state_.storages[t.storage].holds(o);
        t.shape = numbers_of(get(o, kShape));
        t.strides = numbers_of(call(o, kStride));
        t.offset = nb::cast<std::uint64_t>(call(o, kOffset));
        t.requires_grad = truth(get(o, kRequiresGrad));
        t.parameter = is(o, parameter_);
        t.conjugated = truth(call(o, kConjugated));
        t.negated = truth(call(o, kNegated));
        return add_tensor(std::move(t));
    }

    // A number of the place, the same on all ranks: equal parts are written by ranks in turn.
    [[nodiscard]] std::uint64_t place_number() const {
        std::uint64_t number = 0;
        for (const nb::handle step : path_) {
            const std::optional<Value> key = plain_value(step);
            const std::string text = key ? key->text + std::to_string(key->integer) : std::string();
            number = number * 31 + stream::content_hash(std::as_bytes(std::span(text)));
        }
        return number >> 1U;
    }

    // The tensor that slices.py takes apart.
    ValueId part(nb::handle o, int depth) {
        nb::object made;
        try {
            made = parts_(o, place_number(), rank_->count);
        } catch (const nb::python_error& error) {
            if (!error.matches(PyExc_ValueError)) {
                throw;
            }
            raise_value("save: " + place() + ": " + text(error.value()));
        }
        if (!nb::isinstance<nb::tuple>(made)) {
            return value(made, depth + 1);
        }
        HeldPart own = held_part(made);
        const format::TorchType* const type = type_of(own.local);
        if (const std::string wrong = wrong_with_tensor(own.local); !type || !wrong.empty()) {
            refuse(!wrong.empty() ? wrong : "save torch." + dtype_name(own.local) + " whole");
        }
        own.whole.type = type->type;
        if (ties_.contains(own.tie)) {
            own.whole.storage = nb::cast<std::uint32_t>(ties_[own.tie]);
            return add_tensor(std::move(own.whole));
        }
        own.whole.storage = own.sliced.storage = placed([&] {
            return storages_.add_part(own.local, own.elements * type->torch_bytes(), own.is_made);
        });
        ties_[own.tie] = own.whole.storage;
        keep_.push_back(made);  // a tie has an address
        state_.sliced.push_back(std::move(own.sliced));
        return add_tensor(std::move(own.whole));
    }

    // As a dict with this rank's number; the save joins those of all ranks.
    ValueId per_rank(nb::handle o, int depth) {
        if (!rank_) {
            refuse("a PerRank is saved by a CheckpointStore; a file has one state");
        }
        const std::size_t parts = state_.sliced.size();
        const ValueId key = add(ValueKind::kInt);
        state_.tree.values[key].integer = rank_->number;
        const ValueId own = value(nb::object(o.attr("value")), depth + 1);
        if (state_.sliced.size() != parts) {
            refuse(
                "a part of a tensor in a PerRank: other ranks have the rest; give it to the "
                "state itself, or the PerRank its local tensor");
        }
        const ValueId id = add(ValueKind::kPerRank);
        state_.tree.values[id].items = {key, own};
        return id;
    }

    ValueId add_tensor(format::TensorValue t) {
        const ValueId id = add(ValueKind::kTensor);
        state_.tree.values[id].integer = static_cast<std::int64_t>(state_.tree.tensors.size());
        state_.tree.tensors.push_back(std::move(t));
        return id;
    }

    ValueId numpy(nb::handle o) {
        const std::string type = text(nb::object(o.attr("dtype").attr("str")));
        if (!is(o, array_)) {
            const ValueId id = add(ValueKind::kNumpyScalar, type);
            state_.tree.values[id].data = numpy_data(o, type);
            return id;
        }
        const bool fortran = nb::cast<bool>(o.attr("flags")["F_CONTIGUOUS"]) &&
                             !nb::cast<bool>(o.attr("flags")["C_CONTIGUOUS"]);
        const ValueId id = add(ValueKind::kNumpyArray, type);
        std::vector<ValueId> shape;
        for (const std::uint64_t extent : numbers_of(o.attr("shape"))) {
            const ValueId item = add(ValueKind::kInt);
            state_.tree.values[item].integer = static_cast<std::int64_t>(extent);
            shape.push_back(item);
        }
        Value& v = state_.tree.values[id];
        v.flag = fortran;
        v.data = raw(o.attr("tobytes")(nb::arg("order") = fortran ? "F" : "C"));
        v.items = std::move(shape);
        return id;
    }

    State state_;
    TorchStorages storages_;
    bool in_jagged_ = false;  // at a part of one
    const std::optional<SavingRank> rank_;
    const nb::handle other_;
    nb::dict ties_;  // the storages of parts
    nb::object tensor_, parameter_, size_, dtype_, device_, strided_, layout_, scheme_, class_,
        storage_, jagged_;
    nb::object array_, scalar_, contiguous_, ordered_, default_, counter_, pickled_, per_rank_,
        is_part_, parts_;
    std::vector<nb::handle> path_;
    Replaced replaced_;
    // Their nodes, one or two a tensor, go all at once.
    std::pmr::monotonic_buffer_resource nodes_;
    std::pmr::unordered_map<PyObject*, ValueId> seen_{&nodes_};
    std::unordered_map<PyObject*, const format::TorchType*> types_;
    std::vector<nb::object> keep_;
};

}  // namespace

State state_of(nb::handle object, nb::handle other, bool together, std::optional<SavingRank> rank) {
    State made =
        is_collected(object) ? take_collected(object) : Builder(other, together, rank).run(object);
    if (const std::string pickled = format::pickled_line(made.tree); !pickled.empty()) {
        nb::module_::import_("penstock._base.log").attr("pickled")(pickled);
    }
    return made;
}

}  // namespace penstock::python
