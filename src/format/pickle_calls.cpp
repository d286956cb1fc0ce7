// SPDX-License-Identifier: Apache-2.0
#include "format/pickle_calls.hpp"

#include "base/align.hpp"
#include "format/grammar.hpp"
#include "format/numpy_types.hpp"
#include "format/torch_types.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace penstock::format {

namespace {

enum Function : std::int64_t {
    kOrderedDictClass,
    kDefaultDictClass,
    kCounterClass,
    kSetClass,
    kFrozenSetClass,
    kByteArrayClass,
    kBytesClass,
    kComplexClass,
    kEncode,
    kSizeClass,
    kDeviceClass,
    kRebuildTensor,
    kRebuildTensorV3,
    kRebuildParameter,
    kReconstruct,
    kFromBuffer,
    kScalar,
    kNdarray,
    kNumpyDtypeClass,
    kLoads,
    kFactory,         // one of kFactories that is not callable otherwise
    kUntypedStorage,  // and from here on: a storage class, + its row in kTorchTypes + 1
};

struct Name {
    std::string_view module;
    std::string_view name;
    Function function;
};

constexpr Name kNames[] = {
    {"collections", "OrderedDict", kOrderedDictClass},
    {"collections", "defaultdict", kDefaultDictClass},
    {"collections", "Counter", kCounterClass},
    {"builtins", "set", kSetClass},
    {"builtins", "frozenset", kFrozenSetClass},
    {"builtins", "bytearray", kByteArrayClass},
    {"builtins", "bytes", kBytesClass},
    {"builtins", "complex", kComplexClass},
    {"_codecs", "encode", kEncode},
    {"torch", "Size", kSizeClass},
    {"torch", "device", kDeviceClass},
    {"torch._utils", "_rebuild_tensor_v2", kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v3", kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", kRebuildParameter},
    {"torch.storage", "UntypedStorage", kUntypedStorage},
    {"_pickle", "loads", kLoads},
    {"numpy", "ndarray", kNdarray},
    {"numpy", "dtype", kNumpyDtypeClass},
    {"numpy.core.multiarray", "_reconstruct", kReconstruct},
    {"numpy.core.multiarray", "scalar", kScalar},
    {"numpy.core.numeric", "_frombuffer", kFromBuffer},
};

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
    return std::nullopt;
}

}  // namespace

bool PickleCalls::may_copy(std::uint64_t amount) {
    const bool may = amount <= copies_left_;
    copies_left_ -= may ? amount : 0;
    return may;
}

Value PickleCalls::refusal(std::string why) {
    if (first_refused_.empty()) {
        first_refused_ = why;
    }
    return make_value(ValueKind::kRefused, std::move(why));
}

ValueId PickleCalls::refused(std::string why) {
    return tree_.add(refusal(std::move(why)));
}

ValueId PickleCalls::global(std::string_view module, std::string_view given) {
    const std::string_view usual = usual_module(module);
    const std::string_view name = usual_name(module, given);
    if (module == "torch" && torch_type_named(name) != nullptr) {
        return tree_.add(make_value(ValueKind::kDtype, std::string(name)));
    }
    Value value = make_value(ValueKind::kGlobal, std::string(name));
    for (const Name& known : kNames) {
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
    return refused(
        fmt::format("it is made by {}, which is not among the names that are read; "
                    "torch.load(weights_only=False) reads it, and runs what it says",
                    shown(fmt::format("{}.{}", module, given))));
}

ValueId PickleCalls::call(ValueId function, ValueId arguments) {
    if (is(function, ValueKind::kRefused)) {
        return function;
    }
    if (!is(function, ValueKind::kGlobal) || !is(arguments, ValueKind::kTuple)) {
        return refused("something that is no function is called");
    }
    const std::int64_t which = tree_.at(function).integer;
    const Items items = tree_.at(arguments).items;
    // The reason for a refused argument is more useful than that the arguments are wrong.
    for (const ValueId item : items) {
        if (is(item, ValueKind::kRefused)) {
            return item;
        }
    }
    switch (which) {
        case kOrderedDictClass:
            return items.empty() ? tree_.add(make_value(ValueKind::kOrderedDict))
                                 : refused("an OrderedDict is made of something");
        case kDefaultDictClass:
            return default_dict(items);
        case kCounterClass:
            return counter(items);
        case kSetClass:
            return collection(ValueKind::kSet, items);
        case kFrozenSetClass:
            return collection(ValueKind::kFrozenSet, items);
        case kByteArrayClass:
            return held(ValueKind::kByteArray, items);
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
        case kRebuildTensor:
        case kRebuildTensorV3:
            return tensor(items, which == kRebuildTensorV3);
        case kRebuildParameter:
            return parameter(items);
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
            return refused(fmt::format("{} is called", shown(tree_.at(function).text)));
    }
}

ValueId PickleCalls::collection(ValueKind kind, const Items& items) {
    if (items.size() != 1 || !is(items[0], ValueKind::kList)) {
        return refused("a set is made of something that is no list");
    }
    if (!may_copy(tree_.at(items[0]).items.size())) {
        return refused(kTooMany);
    }
    Value value = make_value(kind);
    value.items = tree_.at(items[0]).items;
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
        return refused("a Counter is made of something that is no dict");
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
    if (items.size() != 2 || !is(items[0], ValueKind::kString) ||
        !is(items[1], ValueKind::kString) || tree_.at(items[1]).text != "latin1") {
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

ValueId PickleCalls::held(ValueKind kind, const Items& items) {
    const bool of_bytes = items.size() == 1 && is(items[0], ValueKind::kBytes);
    if (!items.empty() && !of_bytes) {
        return refused("a bytearray, or a pickle in it, is made of something that is no bytes");
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
    const bool hooks = !is(items[5], ValueKind::kNone) && !tree_.at(items[5]).items.empty();
    if (hooks || (items.size() > least && !tensor_flags(items[least], tensor))) {
        return refused("a tensor has hooks or properties that are not read");
    }
    const Value& storage = tree_.at(items[0]);
    tensor.storage = static_cast<std::uint32_t>(storage.integer);
    tensor.offset = static_cast<std::uint64_t>(tree_.at(items[1]).integer);
    tensor.requires_grad = tree_.at(items[4]).flag;
    const TorchType* type = torch_type_named(v3 ? tree_.at(items[6]).text : storage.text);
    if (type == nullptr) {
        return refused("a tensor of an untyped storage says no type");
    }
    tensor.type = type->type;
    if (!fits(tensor, tree_.storages[tensor.storage].bytes)) {
        return refused("a tensor does not lie in its storage: the file is damaged");
    }
    Value value = make_value(ValueKind::kTensor);
    value.integer = static_cast<std::int64_t>(tree_.tensors.size());
    tree_.tensors.push_back(std::move(tensor));
    return tree_.add(std::move(value));
}

ValueId PickleCalls::parameter(const Items& items) {
    if (items.size() != 3 || !is(items[0], ValueKind::kTensor) || !is(items[1], ValueKind::kBool) ||
        !tree_.at(items[2]).items.empty()) {
        return refused("a parameter is made of something else than a tensor, or has hooks");
    }
    TensorValue tensor = tree_.tensors[static_cast<std::size_t>(tree_.at(items[0]).integer)];
    tensor.parameter = true;
    tensor.requires_grad = tree_.at(items[1]).flag;
    Value value = make_value(ValueKind::kTensor);
    value.integer = static_cast<std::int64_t>(tree_.tensors.size());
    tree_.tensors.push_back(std::move(tensor));
    return tree_.add(std::move(value));
}

ValueId PickleCalls::persistent(ValueId id) {
    const Items items = is(id, ValueKind::kTuple) ? tree_.at(id).items : Items();
    // A legacy file has a sixth: a view of another storage, which torch has not written since 0.4.
    const bool formed =
        (items.size() == 5 || (items.size() == 6 && is(items[5], ValueKind::kNone))) &&
        is(items[0], ValueKind::kString) && tree_.at(items[0]).text == "storage" &&
        is(items[1], ValueKind::kGlobal) && tree_.at(items[1]).integer >= kUntypedStorage &&
        is(items[2], ValueKind::kString) && is(items[3], ValueKind::kString) &&
        is(items[4], ValueKind::kInt) && tree_.at(items[4]).integer >= 0;
    if (!formed) {
        return refused("it is stored outside of the pickle in a way that is not read");
    }
    const std::int64_t row = tree_.at(items[1]).integer - kUntypedStorage - 1;
    const TorchType* type = row < 0 ? nullptr : &kTorchTypes[static_cast<std::size_t>(row)];
    const auto bytes =
        base::checked_multiply(static_cast<std::uint64_t>(tree_.at(items[4]).integer),
                               type == nullptr ? 1 : type->torch_bytes());
    const std::string& key = tree_.at(items[2]).text;
    const std::string& location = tree_.at(items[3]).text;
    if (!bytes || *bytes > INT64_MAX || !is_device(location)) {
        return refused(fmt::format("storage {} has an impossible size or place", shown(key)));
    }
    const auto [known, fresh] =
        storages_.try_emplace(key, static_cast<std::int64_t>(tree_.storages.size()));
    // torch itself takes bytes and a storage without a type for the same.
    const std::int64_t bare = type != nullptr && type->type != tensor::ElementType::kU8 ? row : -1;
    if (fresh) {
        tree_.storages.push_back({*bytes, location, key});
        storage_classes_.push_back(bare);
    } else if (const auto at = static_cast<std::size_t>(known->second);
               tree_.storages[at].bytes != *bytes || tree_.storages[at].location != location) {
        return refused(fmt::format("storage {} has two sizes or places", shown(key)));
    } else if (*bytes != 0 && storage_classes_[at] != bare) {
        return refused(fmt::format("storage {} has two types", shown(key)));
    }
    Value value = make_value(ValueKind::kStorage, type == nullptr ? "" : std::string(type->torch));
    value.integer = known->second;
    return tree_.add(std::move(value));
}

void PickleCalls::build(ValueId object, ValueId state) {
    Value& value = tree_.values[object];
    const Value& given = tree_.at(state);
    if (value.kind == ValueKind::kRefused) {
        return;
    }
    if (value.kind == ValueKind::kOrderedDict && given.kind == ValueKind::kDict) {
        value.attributes = state;
    } else if (value.kind == ValueKind::kNumpyDtype) {
        build_numpy_dtype(value, given);
    } else if (value.kind == ValueKind::kNumpyArray) {
        build_numpy_array(object, given);
    } else {
        value = refusal("it has a state of its own, which is not read");
    }
}

}  // namespace penstock::format
