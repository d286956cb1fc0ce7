// SPDX-License-Identifier: Apache-2.0
#include "format/pickle/pickle_calls.hpp"

#include "base/align.hpp"
#include "format/grammar.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/pickle/pickle_names.hpp"
#include "format/pickle/pickle_unread.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace penstock::format {

namespace {

// Maps the module names of Python 2 and NumPy 2 to the usual ones.
std::string_view usual_module(std::string_view module) {
    if (module == "__builtin__") {
        return "builtins";
    }
    if (module == "numpy._core.multiarray") {
        return "numpy.core.multiarray";
    }
    if (module == "numpy._core.numeric") {
        return "numpy.core.numeric";
    }
    return module == "torch.cuda" ? "torch" : module;
}

// Python 3 writes its types with their Python 2 names at protocol 2.
std::string_view usual_name(std::string_view module, std::string_view name) {
    if (module == "__builtin__" && (name == "long" || name == "unicode")) {
        return name == "long" ? "int" : "str";
    }
    return name;
}

std::optional<std::int64_t> storage_class(std::string_view module, std::string_view name) {
    for (std::size_t row = 0; module == "torch" && row < kTorchTypes.size(); ++row) {
        if (!name.empty() && kTorchTypes[row].torch_storage == name) {
            return kUntypedStorage + 1 + static_cast<std::int64_t>(row);
        }
    }
    if (const HeldType* held = module == "torch" ? held_type_of_storage(name) : nullptr) {
        return kUntypedStorage + 1 + static_cast<std::int64_t>(kTorchTypes.size()) +
               (held - kHeldTypes.data());
    }
    return std::nullopt;
}

// "cuda.FloatTensor" of a class of tensors, or empty.
std::string tensor_class(std::string_view module, std::string_view name) {
    constexpr std::string_view kTorch = "torch";
    if (!module.starts_with(kTorch)) {
        return {};
    }
    std::string_view rest = module.substr(kTorch.size());
    rest.remove_prefix(rest.starts_with('.') ? 1 : 0);
    std::string full = fmt::format("{}{}{}", rest, rest.empty() ? "" : ".", name);
    return torch_constant(full) == Constant::kClass ? full : std::string();
}

}  // namespace

bool PickleCalls::may_copy(std::uint64_t amount) {
    const bool may = amount <= copies_left_;
    copies_left_ -= may ? amount : 0;
    return may;
}

std::string PickleCalls::not_read(std::string_view module, std::string_view name) {
    return fmt::format(
        "it is made by {}, which is not among the names that are read; "
        "torch.load(weights_only=False) reads it, and runs what it says",
        shown(fmt::format("{}.{}", module, name)));
}

Value PickleCalls::refusal(std::string why) {
    Value value = make_value(ValueKind::kUnread);
    value.data = std::move(why);
    return value;
}

ValueId PickleCalls::refused(std::string why) {
    return tree_.add(refusal(std::move(why)));
}

ValueId PickleCalls::damaged(std::string why) {
    const ValueId id = refused(std::move(why));
    tree_.values[id].flag = true;
    return id;
}

ValueId PickleCalls::global(std::string_view module, std::string_view given) {
    const std::string_view usual = usual_module(module);
    const std::string_view name = usual_name(module, given);
    if (const Constant constant = module == "torch" ? torch_constant(name) : Constant::kNone;
        constant == Constant::kDtype || constant == Constant::kScheme) {
        return tree_.add(make_value(ValueKind::kDtype, std::string(name)));
    }
    Value value = make_value(ValueKind::kGlobal, std::string(name));
    value.data = module;
    for (const PickleName& known : kPickleNames) {
        if (known.module == usual && known.name == name) {
            value.integer = known.function;
            return tree_.add(std::move(value));
        }
    }
    if (const Factory* factory = factory_named(name); factory != nullptr) {
        if (factory->module == usual) {
            value.integer = kFactory;
            return tree_.add(std::move(value));
        }
    }
    if (const auto storage = storage_class(usual, name)) {
        value.integer = *storage;
        return tree_.add(std::move(value));
    }
    if (std::string full = tensor_class(module, name); !full.empty()) {
        value.integer = kTypedTensorClass;
        value.text = std::move(full);
        return tree_.add(std::move(value));
    }
    const ValueId id = refused(not_read(module, given));
    tree_.values[id].text = unread_name(module, given);
    return id;
}

ValueId PickleCalls::call(ValueId function, ValueId arguments) {
    if (!is(function, ValueKind::kGlobal) || !is(arguments, ValueKind::kTuple)) {
        return refused("something that is not a function is called");
    }
    const std::int64_t which = tree_.at(function).integer;
    const Items items = tree_.at(arguments).items;
    switch (which) {
        case kOrderedDictClass:
            return ordered_dict(items);
        case kDefaultDictClass:
            return default_dict(items);
        case kCounterClass:
            return counter(items);
        case kSetClass:
            return collection(ValueKind::kSet, items);
        case kFrozenSetClass:
            return collection(ValueKind::kFrozenSet, items);
        case kByteArrayClass:
            // Python writes it as bytearray("text", "latin-1") at protocol 2.
            return items.size() == 2 ? bytearray_of(encode(items))
                                     : held(ValueKind::kByteArray, items);
        case kBytesClass:
            return items.empty() ? tree_.add(make_value(ValueKind::kBytes))
                                 : refused("bytes are made of something");
        case kComplexClass:
            return complex(items);
        case kEncode:
            return encode(items);
        case kSizeClass:
            return size(items);
        case kDeviceClass:
            return device(items);
        case kRebuildFromType:
            return tensor_with_state(items);
        case kReconstruct:
            return tree_.add(make_value(ValueKind::kNumpyArray));
        case kFromBuffer:
            return numpy_from_buffer(items);
        case kScalar:
            return numpy_scalar(items);
        case kNumpyDtypeClass:
            return numpy_dtype(items);
        case kLoads:
            return items.empty() ? refused("a pickle in it is made of nothing")
                                 : held(ValueKind::kPickled, items);
        default:
            break;
    }
    const std::optional<ValueId> made = torch_call(which, items);
    return made ? *made : refused(fmt::format("{} is called", shown(tree_.at(function).text)));
}

ValueId PickleCalls::collection(ValueKind kind, const Items& items) {
    if (items.size() != 1 || !is(items[0], ValueKind::kList)) {
        return refused("a set is made of something that is not a list");
    }
    if (!may_copy(tree_.at(items[0]).items.size())) {
        return refused(kTooMany);
    }
    Value value = make_value(kind);
    value.items = tree_.at(items[0]).items;
    return tree_.add(std::move(value));
}

// Python 2 gives it its items as a list of pairs; what it holds is in no other list.
ValueId PickleCalls::ordered_dict(const Items& items) {
    Value value = make_value(ValueKind::kOrderedDict);
    if (items.size() > 1 || (items.size() == 1 && !is(items[0], ValueKind::kList))) {
        return refused("an OrderedDict is made of something that is not a list of pairs");
    }
    const Items pairs = items.empty() ? Items() : tree_.at(items[0]).items;
    if (!may_copy(2 * pairs.size())) {
        return refused(kTooMany);
    }
    for (const ValueId pair : pairs) {
        const Value& two = tree_.at(pair);
        if ((two.kind != ValueKind::kList && two.kind != ValueKind::kTuple) ||
            two.items.size() != 2) {
            return refused("an OrderedDict is made of something that is not a list of pairs");
        }
        value.items.insert(value.items.end(), two.items.begin(), two.items.end());
    }
    return tree_.add(std::move(value));
}

ValueId PickleCalls::default_dict(const Items& items) {
    Value value = make_value(ValueKind::kDefaultDict);
    if (items.size() == 1 && is(items[0], ValueKind::kGlobal)) {
        const std::string& factory = tree_.at(items[0]).text;
        if (factory_named(factory) == nullptr) {
            return refused("a defaultdict makes " + shown(factory));
        }
        value.text = factory;
    } else if (!items.empty() && !(items.size() == 1 && is(items[0], ValueKind::kNone))) {
        return refused("a defaultdict is made of something");
    }
    return tree_.add(std::move(value));
}

ValueId PickleCalls::counter(const Items& items) {
    if (items.size() > 1 || (items.size() == 1 && !is(items[0], ValueKind::kDict))) {
        return refused("a Counter is made of something that is not a dict");
    }
    Value value = make_value(ValueKind::kCounter);
    if (items.size() == 1) {
        if (!may_copy(tree_.at(items[0]).items.size())) {
            return refused(kTooMany);
        }
        value.items = tree_.at(items[0]).items;
    }
    return tree_.add(std::move(value));
}

ValueId PickleCalls::encode(const Items& items) {
    const bool texts =
        items.size() == 2 && is(items[0], ValueKind::kString) && is(items[1], ValueKind::kString);
    const std::string encoding = texts ? tree_.at(items[1]).text : std::string();
    if (encoding != "latin1" && encoding != "latin-1") {
        return refused("bytes are encoded otherwise than as Latin-1");
    }
    if (!may_copy(tree_.at(items[0]).text.size())) {
        return refused(kTooMany);
    }
    auto bytes = latin1_of(tree_.at(items[0]).text);
    if (!bytes) {
        return refused("bytes are made of characters past U+00FF");
    }
    return tree_.add(make_value(ValueKind::kBytes, std::move(*bytes)));
}

ValueId PickleCalls::bytearray_of(ValueId bytes) {
    if (is(bytes, ValueKind::kBytes)) {
        tree_.values[bytes].kind = ValueKind::kByteArray;
    }
    return bytes;
}

ValueId PickleCalls::held(ValueKind kind, const Items& items) {
    const bool of_bytes = items.size() == 1 && is(items[0], ValueKind::kBytes);
    if (!items.empty() && !of_bytes) {
        return refused("a bytearray, or a pickle in it, is made of something that is not bytes");
    }
    if (of_bytes && !may_copy(tree_.at(items[0]).text.size())) {
        return refused(kTooMany);
    }
    return tree_.add(make_value(kind, of_bytes ? tree_.at(items[0]).text : std::string()));
}

ValueId PickleCalls::complex(const Items& items) {
    if (items.size() != 2 || !is(items[0], ValueKind::kFloat) || !is(items[1], ValueKind::kFloat)) {
        return refused("a complex number is made of something else than two floats");
    }
    Value value = make_value(ValueKind::kComplex);
    value.real = tree_.at(items[0]).real;
    value.imaginary = tree_.at(items[1]).real;
    return tree_.add(std::move(value));
}

ValueId PickleCalls::size(const Items& items) {
    if (items.size() != 1 || !is(items[0], ValueKind::kTuple)) {
        return refused("a torch.Size is made of something else than a tuple");
    }
    Value value = make_value(ValueKind::kSize);
    value.items = tree_.at(items[0]).items;
    return tree_.add(std::move(value));
}

ValueId PickleCalls::device(const Items& items) {
    const bool one = items.size() == 1 && is(items[0], ValueKind::kString);
    const bool two = items.size() == 2 && is(items[0], ValueKind::kString) &&
                     is(items[1], ValueKind::kInt) && tree_.at(items[1]).integer >= 0;
    std::string name = one || two ? tree_.at(items[0]).text : std::string();
    if (two) {
        name += fmt::format(":{}", tree_.at(items[1]).integer);
    }
    if (!is_device(name)) {
        return refused("a torch.device has an impossible name");
    }
    return tree_.add(make_value(ValueKind::kDevice, std::move(name)));
}

bool PickleCalls::sizes(ValueId id, std::vector<std::uint64_t>& out) const {
    const Value& value = tree_.at(id);
    if (value.kind != ValueKind::kTuple && value.kind != ValueKind::kSize) {
        return false;
    }
    for (const ValueId item : value.items) {
        const Value& extent = tree_.at(item);
        if (extent.kind != ValueKind::kInt || extent.integer < 0 || out.size() == kTensorRankMax) {
            return false;
        }
        out.push_back(static_cast<std::uint64_t>(extent.integer));
    }
    return true;
}

// Reads the last argument of a tensor, if present: {"conj": True, "neg": True}.
bool PickleCalls::tensor_flags(ValueId id, TensorValue& tensor) const {
    const Value& value = tree_.at(id);
    if (value.kind == ValueKind::kNone) {
        return true;
    }
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
        const Value& key = tree_.at(value.items[i]);
        const Value& flag = tree_.at(value.items[i + 1]);
        if (flag.kind != ValueKind::kBool || (key.text != "conj" && key.text != "neg")) {
            return false;
        }
        (key.text == "conj" ? tensor.conjugated : tensor.negated) = flag.flag;
    }
    return value.kind == ValueKind::kDict;
}

// (storage, offset, size, stride, requires_grad, hooks[, dtype of v3][, flags])
ValueId PickleCalls::tensor(const Items& items, bool v3) {
    const std::size_t least = v3 ? 7 : 6;
    const bool formed = (items.size() == least || items.size() == least + 1) &&
                        is(items[0], ValueKind::kStorage) && is(items[1], ValueKind::kInt) &&
                        tree_.at(items[1]).integer >= 0 && is(items[4], ValueKind::kBool) &&
                        (!v3 || is(items[6], ValueKind::kDtype));
    TensorValue tensor;
    if (!formed || !sizes(items[2], tensor.shape) || !sizes(items[3], tensor.strides)) {
        return refused("a tensor is made of something else than a storage and sizes");
    }
    if (!no_hooks(items[5]) || (items.size() > least && !tensor_flags(items[least], tensor))) {
        return refused("a tensor has hooks or properties that are not read");
    }
    const Value& storage = tree_.at(items[0]);
    const std::string dtype = v3 ? tree_.at(items[6]).text : storage.text;
    const TorchType* type = torch_type_named(dtype);
    const HeldType* held = v3 ? held_type_named(dtype) : nullptr;
    if (type == nullptr && (held == nullptr || !held->storage.empty())) {
        return refused("a tensor of an untyped storage says no type");
    }
    tensor.storage = static_cast<std::uint32_t>(storage.integer);
    tensor.type = type != nullptr ? type->type : held->held;
    const auto begin = static_cast<std::uint64_t>(tree_.at(items[1]).integer);
    // Views of storages have an offset of their own.
    const auto offset = base::checked_add(
        begin,
        storage.items.empty() ? 0 : static_cast<std::uint64_t>(tree_.at(storage.items[0]).integer));
    tensor.offset = offset.value_or(UINT64_MAX);
    tensor.requires_grad = tree_.at(items[4]).flag;
    if (!fits(tensor, tree_.storages[tensor.storage].bytes)) {
        return damaged("a tensor does not lie in its storage: the file is damaged");
    }
    const ValueId made = new_tensor(std::move(tensor));
    return held == nullptr ? made : rebuilt("view", {made, items[6]});
}

// (data, requires_grad, hooks[, attributes]); the class itself takes (data[, requires_grad]).
ValueId PickleCalls::parameter(const Items& items, bool with_state) {
    const bool data = !items.empty() && items.size() <= (with_state ? 4U : 3U) &&
                      (is(items[0], ValueKind::kTensor) || is(items[0], ValueKind::kRebuilt));
    if (!data || (with_state && items.size() != 4) ||
        (items.size() > 1 && !is(items[1], ValueKind::kBool)) ||
        (items.size() > 2 && !no_hooks(items[2]))) {
        return refused("a parameter is made of something else than a tensor, or has hooks");
    }
    const bool requires_grad = items.size() == 1 || tree_.at(items[1]).flag;
    ValueId made = kNoValue;
    if (is(items[0], ValueKind::kTensor)) {
        TensorValue tensor = tree_.tensors[static_cast<std::size_t>(tree_.at(items[0]).integer)];
        tensor.parameter = true;
        tensor.requires_grad = requires_grad;
        made = new_tensor(std::move(tensor));
    } else {
        Value flag = make_value(ValueKind::kBool);
        flag.flag = requires_grad;
        made = rebuilt("parameter", {items[0], tree_.add(std::move(flag))});
    }
    return with_state ? with_attributes(made, items[3]) : made;
}

ValueId PickleCalls::persistent(ValueId id) {
    const Items items = is(id, ValueKind::kTuple) ? tree_.at(id).items : Items();
    const bool view = items.size() == 6 && is(items[5], ValueKind::kTuple);
    const bool formed =
        (items.size() == 5 || view || (items.size() == 6 && is(items[5], ValueKind::kNone))) &&
        is(items[0], ValueKind::kString) && tree_.at(items[0]).text == "storage" &&
        is(items[1], ValueKind::kGlobal) && tree_.at(items[1]).integer >= kUntypedStorage &&
        is(items[2], ValueKind::kString) && is(items[3], ValueKind::kString) &&
        is(items[4], ValueKind::kInt) && tree_.at(items[4]).integer >= 0;
    if (!formed) {
        return refused("it is stored outside of the pickle in a way that is not read");
    }
    const std::int64_t row = tree_.at(items[1]).integer - kUntypedStorage - 1;
    const auto rows = static_cast<std::int64_t>(kTorchTypes.size());
    const HeldType* held = row < rows ? nullptr : &kHeldTypes[static_cast<std::size_t>(row - rows)];
    const TorchType* type = row < 0           ? nullptr
                            : held != nullptr ? torch_type(held->held)
                                              : &kTorchTypes[static_cast<std::size_t>(row)];
    const auto bytes =
        base::checked_multiply(static_cast<std::uint64_t>(tree_.at(items[4]).integer),
                               type == nullptr ? 1 : type->torch_bytes());
    const std::string& key = tree_.at(items[2]).text;
    const std::string& location = tree_.at(items[3]).text;
    if (!bytes || *bytes > INT64_MAX) {
        return damaged(fmt::format("storage {} has an impossible size", shown(key)));
    }
    if (!is_device(location)) {
        return refused(fmt::format("storage {} was on {}, which is not a known device", shown(key),
                                   shown(location)));
    }
    const auto [known, fresh] =
        storages_.try_emplace(key, static_cast<std::int64_t>(tree_.storages.size()));
    // torch itself takes bytes and a storage without a type for the same.
    const bool is_bare =
        type == nullptr || (held == nullptr && type->type == tensor::ElementType::kU8);
    const std::int64_t bare = is_bare ? -1 : row;
    if (fresh) {
        tree_.storages.push_back({*bytes, location, key});
        storage_classes_.push_back(bare);
    } else if (const auto at = static_cast<std::size_t>(known->second);
               tree_.storages[at].bytes != *bytes || tree_.storages[at].location != location) {
        return damaged(fmt::format("storage {} has two sizes or places", shown(key)));
    } else if (*bytes != 0 && storage_classes_[at] != bare) {
        return damaged(fmt::format("storage {} has two types", shown(key)));
    }
    Value value = make_value(ValueKind::kStorage, held != nullptr   ? std::string(held->name)
                                                  : type != nullptr ? std::string(type->torch)
                                                                    : std::string());
    value.integer = known->second;
    if (view) {
        // ("key", offset, elements): a part of the storage, as torch had them up to 0.3.
        const Items part = tree_.at(items[5]).items;
        if (part.size() != 3 || !is(part[1], ValueKind::kInt) || tree_.at(part[1]).integer < 0) {
            return refused(fmt::format("a part of storage {} has no place", shown(key)));
        }
        value.items.push_back(part[1]);
    }
    return tree_.add(std::move(value));
}

bool PickleCalls::build(ValueId object, ValueId state) {
    Value& value = tree_.values[object];
    const Value& given = tree_.at(state);
    if (value.kind == ValueKind::kOrderedDict && given.kind == ValueKind::kDict) {
        value.attributes = state;
    } else if (value.kind == ValueKind::kNewTensor || value.kind == ValueKind::kTensor) {
        return build_tensor(object, given);
    } else if (value.kind == ValueKind::kNumpyDtype) {
        build_numpy_dtype(value, given);
    } else if (value.kind == ValueKind::kNumpyArray) {
        build_numpy_array(object, given);
    } else {
        return false;
    }
    return true;
}

bool is_name_read(std::string_view module, std::string_view name) {
    ValueTree tree;
    const Value& value = tree.at(PickleCalls(tree, 0).global(module, name));
    return value.kind == ValueKind::kGlobal || value.kind == ValueKind::kDtype;
}

}  // namespace penstock::format
