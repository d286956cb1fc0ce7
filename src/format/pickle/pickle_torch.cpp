// SPDX-License-Identifier: Apache-2.0
// The part of the calls that is torch's: tensors of every kind, parameters, storages. What torch
// itself does with the same arguments is in its torch/_utils.py and torch/_tensor.py.
#include "base/align.hpp"
#include "format/grammar.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/pickle/pickle_calls.hpp"
#include "format/pickle/pickle_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace penstock::format {

namespace {

bool makes_tensor(std::int64_t function) {
    return function >= kRebuildTensorV1 && function <= kRebuildFromCpu &&
           function != kRebuildParameter && function != kRebuildParameterWithState &&
           function != kRebuildJagged;
}

// The names that only a jagged tensor has, next to those of others.
constexpr std::array<std::string_view, 10> kOfJagged{
    "_values", "_offsets", "_lengths",    "_ragged_idx", "_metadata_cache",
    "_size",   "_strides", "_min_seqlen", "_max_seqlen", "requires_grad"};
constexpr std::array<std::string_view, 6> kJaggedKeywords{
    "values", "offsets", "lengths", "_ragged_idx", "_metadata_cache", "requires_grad"};
constexpr const char* kNotJagged =
    "a jagged tensor is made of something else than values, offsets and lengths";

template <typename Names>
bool has_name(const Names& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<ValueId> PickleCalls::torch_call(std::int64_t which, const Items& items) {
    switch (which) {
        case kGetLayout:
            return layout(items);
        case kRebuildTensorV1:
            return tensor_v1(items);
        case kRebuildTensor:
        case kRebuildTensorV3:
            return tensor(items, which == kRebuildTensorV3);
        case kRebuildParameter:
        case kRebuildParameterWithState:
        case kParameterClass:
            return parameter(items, which == kRebuildParameterWithState);
        case kRebuildSparse:
            return sparse(items);
        case kRebuildQuantized:
            return quantized(items);
        case kRebuildNested:
            return rebuilt("nested", items);
        case kRebuildJagged:
            return jagged(items);
        case kRebuildMeta:
            return rebuilt("meta", items);
        case kRebuildFromCpu:
            return from_cpu(items);
        case kTypedTensorClass:
            return items.empty() ? tree_.add(make_value(ValueKind::kNewTensor, "a new tensor"))
                                 : refused("a tensor is made of what its class does not take");
        default:
            return std::nullopt;
    }
}

bool PickleCalls::no_hooks(ValueId id) const {
    return is(id, ValueKind::kNone) || tree_.at(id).items.empty();
}

ValueId PickleCalls::new_tensor(TensorValue tensor) {
    Value value = make_value(ValueKind::kTensor);
    value.integer = static_cast<std::int64_t>(tree_.tensors.size());
    tree_.tensors.push_back(std::move(tensor));
    return tree_.add(std::move(value));
}

// (storage, offset, size, stride)
ValueId PickleCalls::tensor_v1(const Items& items) {
    if (items.size() != 4) {
        return refused("a tensor is made of something else than a storage and sizes");
    }
    Items all = items;
    all.push_back(tree_.add(make_value(ValueKind::kBool)));
    all.push_back(tree_.add(make_value(ValueKind::kNone)));
    return tensor(all, false);
}

// (function, class, its arguments, attributes)
ValueId PickleCalls::tensor_with_state(const Items& items) {
    const auto global = [&](std::size_t i) {
        return items.size() == 4 && is(items[i], ValueKind::kGlobal) ? tree_.at(items[i]).integer
                                                                     : -1;
    };
    if (global(1) == kJaggedClass && (global(0) == kRebuildJagged || global(0) == kJaggedClass) &&
        is(items[2], ValueKind::kTuple) && is(items[3], ValueKind::kDict)) {
        return jagged_with_state(items[2], items[3], global(0) == kJaggedClass);
    }
    const bool formed =
        items.size() == 4 && is(items[0], ValueKind::kGlobal) &&
        makes_tensor(tree_.at(items[0]).integer) && is(items[1], ValueKind::kGlobal) &&
        tree_.at(items[1]).integer == kTensorClass && is(items[2], ValueKind::kTuple);
    return formed ? with_attributes(call(items[0], items[2]), items[3])
                  : refused(not_read("torch._tensor", "_rebuild_from_type_v2"));
}

// `state`: a dict, None, or a tuple of two of these (attributes and slots).
ValueId PickleCalls::with_attributes(ValueId made, ValueId state) {
    const Value& given = tree_.at(state);
    const Items dicts =
        given.kind == ValueKind::kTuple && given.items.size() == 2 ? given.items : Items{state};
    Value own = make_value(ValueKind::kDict);
    for (const ValueId id : dicts) {
        const Value& dict = tree_.at(id);
        if (dict.kind != ValueKind::kNone && dict.kind != ValueKind::kDict) {
            return refused("a tensor has attributes that are not in a dict");
        }
        if (!may_copy(dict.items.size())) {
            return refused(kTooMany);
        }
        own.items.insert(own.items.end(), dict.items.begin(), dict.items.end());
    }
    if (is(made, ValueKind::kTensor)) {
        TensorValue& tensor = tree_.tensors[static_cast<std::size_t>(tree_.at(made).integer)];
        Items others;
        for (std::size_t i = 0; i + 1 < own.items.size(); i += 2) {
            if (tree_.at(own.items[i]).text == "requires_grad" &&
                is(own.items[i + 1], ValueKind::kBool)) {
                tensor.requires_grad = tree_.at(own.items[i + 1]).flag;
            } else {
                others.insert(others.end(), {own.items[i], own.items[i + 1]});
            }
        }
        own.items = std::move(others);
    }
    if (!own.items.empty() && (is(made, ValueKind::kTensor) || is(made, ValueKind::kRebuilt))) {
        const ValueId attributes = tree_.add(std::move(own));
        tree_.values[made].attributes = attributes;
    }
    return made;
}

// Takes ("torch.sparse_coo",).
ValueId PickleCalls::layout(const Items& items) {
    constexpr std::string_view kTorch = "torch.";
    const std::string name = items.size() == 1 && is(items[0], ValueKind::kString)
                                 ? tree_.at(items[0]).text
                                 : std::string();
    if (!name.starts_with(kTorch) ||
        torch_constant(name.substr(kTorch.size())) != Constant::kLayout) {
        return refused(fmt::format("{} is not a layout of torch that is read", shown(name)));
    }
    return tree_.add(make_value(ValueKind::kDtype, name.substr(kTorch.size())));
}

ValueId PickleCalls::rebuilt(std::string_view tag, Items parts) {
    Value value = make_value(ValueKind::kRebuilt, std::string(tag));
    value.items = std::move(parts);
    std::string wrong = wrong_rebuilt(tree_, value);
    return wrong.empty() ? tree_.add(std::move(value)) : refused(std::move(wrong));
}

// The last one of that key, as in a dict of Python.
ValueId PickleCalls::entry(ValueId dict, std::string_view key) const {
    const Items& items = tree_.at(dict).items;
    for (std::size_t i = items.size(); i >= 2; i -= 2) {
        if (is(items[i - 2], ValueKind::kString) && tree_.at(items[i - 2]).text == key) {
            return items[i - 1];
        }
    }
    return kNoValue;
}

// Whether a value, or one in it, is a place-holder: what is passed over holds none.
bool PickleCalls::holds_unread(ValueId id) const {
    const auto unread = [this](ValueId one) { return is(one, ValueKind::kUnread); };
    return id != kNoValue && (unread(id) || std::any_of(tree_.at(id).items.begin(),
                                                        tree_.at(id).items.end(), unread));
}

// ({"values": .., "offsets": .., ...},): the arguments of torch's NestedTensor by their keywords.
ValueId PickleCalls::jagged(const Items& items) {
    if (items.size() != 1 || !is(items[0], ValueKind::kDict)) {
        return refused(kNotJagged);
    }
    const ValueId given = items[0];
    const Items& all = tree_.at(given).items;
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
        if (!is(all[i], ValueKind::kString) || !has_name(kJaggedKeywords, tree_.at(all[i]).text)) {
            return refused(kNotJagged);
        }
    }
    const auto or_made = [this](ValueId id, Value made) {
        return id != kNoValue ? id : tree_.add(std::move(made));
    };
    const ValueId values = entry(given, "values");
    const ValueId offsets = entry(given, "offsets");
    if (values == kNoValue || offsets == kNoValue) {
        return refused(kNotJagged);
    }
    Value first = make_value(ValueKind::kInt);
    first.integer = 1;
    const ValueId ragged = or_made(entry(given, "_ragged_idx"), std::move(first));
    const ValueId lengths = or_made(entry(given, "lengths"), make_value(ValueKind::kNone));
    const ValueId grad = or_made(entry(given, "requires_grad"), make_value(ValueKind::kBool));
    // The least and the greatest length: tensors of that extent since torch 2.5, numbers before,
    // which torch computes again.
    const ValueId cache = entry(given, "_metadata_cache");
    if (cache != kNoValue && holds_unread(cache)) {
        return refused("a jagged tensor keeps an object that is not read");
    }
    std::array<ValueId, 2> extremes{};
    for (std::size_t i = 0; i < 2; ++i) {
        const ValueId known = cache == kNoValue || !is(cache, ValueKind::kDict)
                                  ? kNoValue
                                  : entry(cache, i == 0 ? "min_seqlen" : "max_seqlen");
        extremes[i] = known == kNoValue || is(known, ValueKind::kInt)
                          ? tree_.add(make_value(ValueKind::kNone))
                          : known;
    }
    for (const ValueId part : {values, offsets, lengths, extremes[0], extremes[1]}) {
        drop_compile_hints(tree_, part);
    }
    return rebuilt("jagged", {values, offsets, lengths, extremes[0], extremes[1], ragged, grad});
}

// `by_class`: of (values, offsets), as torch wrote it before 2.6; the rest is in the state. The
// state has the parts again: they are the same.
ValueId PickleCalls::jagged_with_state(ValueId arguments, ValueId state, bool by_class) {
    Items items = tree_.at(arguments).items;
    const auto in_state = [&](std::string_view name) { return entry(state, name); };
    const auto none = [&](ValueId id) { return id == kNoValue || is(id, ValueKind::kNone); };
    if (by_class) {
        if (items.size() != 2) {
            return refused(kNotJagged);
        }
        Value keywords = make_value(ValueKind::kDict);
        const auto add = [&](std::string_view name, ValueId value) {
            if (value != kNoValue) {
                const ValueId key = tree_.add(make_value(ValueKind::kString, std::string(name)));
                keywords.items.insert(keywords.items.end(), {key, value});
            }
        };
        add("values", items[0]);
        add("offsets", items[1]);
        add("lengths", in_state("_lengths"));
        add("_ragged_idx", in_state("_ragged_idx"));
        add("_metadata_cache", in_state("_metadata_cache"));
        add("requires_grad", in_state("requires_grad"));
        items = {tree_.add(std::move(keywords))};
    }
    const ValueId made = jagged(items);
    if (!is(made, ValueKind::kRebuilt)) {
        return made;
    }
    const Items parts = tree_.at(made).items;
    const ValueId lengths = in_state("_lengths");
    const ValueId ragged = in_state("_ragged_idx");
    const ValueId cache = in_state("_metadata_cache");
    const auto is_or_lacks = [&](ValueId id, ValueId part) { return id == kNoValue || id == part; };
    const bool same =
        is_or_lacks(in_state("_values"), parts[0]) && is_or_lacks(in_state("_offsets"), parts[1]) &&
        (is_or_lacks(lengths, parts[2]) || (none(lengths) && none(parts[2]))) &&
        in_state("_size") == kNoValue && in_state("_strides") == kNoValue &&
        (ragged == kNoValue ||
         (is(ragged, ValueKind::kInt) && tree_.at(ragged).integer == tree_.at(parts[5]).integer)) &&
        is_or_lacks(cache, entry(items[0], "_metadata_cache")) &&
        !holds_unread(in_state("_min_seqlen")) && !holds_unread(in_state("_max_seqlen"));
    if (!same) {
        return refused("a jagged tensor has other parts than those that it is made of");
    }
    Value own = make_value(ValueKind::kDict);
    const Items all = tree_.at(state).items;
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
        if (!is(all[i], ValueKind::kString) || !has_name(kOfJagged, tree_.at(all[i]).text)) {
            own.items.insert(own.items.end(), {all[i], all[i + 1]});
        }
    }
    if (!may_copy(own.items.size())) {
        return refused(kTooMany);
    }
    if (!own.items.empty()) {
        const ValueId attributes = tree_.add(std::move(own));
        tree_.values[made].attributes = attributes;
        drop_compile_hints(tree_, made);
    }
    return made;
}

// (layout, (indices, values, size[, coalesced])), or (layout, (indices, indices, values, size))
ValueId PickleCalls::sparse(const Items& items) {
    const bool formed =
        items.size() == 2 && is(items[0], ValueKind::kDtype) && is(items[1], ValueKind::kTuple);
    const RebuiltRow* row = formed ? sparse_of_layout(tree_.at(items[0]).text) : nullptr;
    if (row == nullptr) {
        return refused("a sparse tensor is made of something else than a layout and its parts");
    }
    Items parts = tree_.at(items[1]).items;
    if (row->rebuilt == Rebuilt::kSparseCoo && parts.size() == 3) {
        parts.push_back(tree_.add(make_value(ValueKind::kNone)));
    }
    return rebuilt(row->tag, std::move(parts));
}

// A tensor of all that a storage has, as the type that the storage holds.
ValueId PickleCalls::whole_storage(const Value& storage) {
    const HeldType* held = held_type_named(storage.text);
    const TorchType* type = torch_type_named(storage.text);
    TensorValue whole;
    whole.storage = static_cast<std::uint32_t>(storage.integer);
    whole.type = held != nullptr   ? held->held
                 : type != nullptr ? type->type
                                   : tensor::ElementType::kU8;
    whole.shape = {tree_.storages[whole.storage].bytes / torch_type(whole.type)->torch_bytes()};
    whole.strides = {1};
    return new_tensor(std::move(whole));
}

// (storage, offset, size, stride, (scheme, scale, zero point[, axis]), requires_grad, hooks)
ValueId PickleCalls::quantized(const Items& items) {
    const bool formed = items.size() == 7 && is(items[0], ValueKind::kStorage) &&
                        tree_.at(items[0]).items.empty() && is(items[4], ValueKind::kTuple) &&
                        no_hooks(items[6]);
    Items scheme = formed ? tree_.at(items[4]).items : Items();
    if (scheme.size() != 3 && scheme.size() != 4) {
        return refused("a quantized tensor is made of something else than a storage and scales");
    }
    if (scheme.size() == 3) {
        scheme.push_back(tree_.add(make_value(ValueKind::kNone)));
    }
    const Value storage = tree_.at(items[0]);
    const ValueId whole = whole_storage(storage);
    const ValueId dtype = tree_.add(make_value(ValueKind::kDtype, storage.text));
    return rebuilt("quantized", {whole, dtype, items[1], items[2], items[3], scheme[0], scheme[1],
                                 scheme[2], scheme[3], items[5]});
}

// (a tensor of the host, its dtype, "xla:0", requires_grad): what is of a device that has no
// storages. From here on it is a tensor whose storage was on that device.
ValueId PickleCalls::from_cpu(const Items& items) {
    const bool formed = items.size() == 4 && is(items[0], ValueKind::kTensor) &&
                        is(items[1], ValueKind::kDtype) && is(items[2], ValueKind::kString) &&
                        is(items[3], ValueKind::kBool) && is_device(tree_.at(items[2]).text);
    if (!formed) {
        return refused("a tensor of a device is made of something else than one of the host");
    }
    TensorValue tensor = tree_.tensors[static_cast<std::size_t>(tree_.at(items[0]).integer)];
    StorageValue& storage = tree_.storages[tensor.storage];
    const std::string& device = tree_.at(items[2]).text;
    if (torch_type(tensor.type)->torch != tree_.at(items[1]).text ||
        (storage.location != "cpu" && storage.location != device)) {
        return refused("a tensor of a device has another type there, or is of two devices");
    }
    storage.location = device;
    tensor.requires_grad = tree_.at(items[3]).flag;
    return new_tensor(std::move(tensor));
}

// Torch wrote this before 0.4 and reads it still: (storage, offset, size, stride) of a new tensor,
// (requires_grad, .., hooks) of a parameter.
bool PickleCalls::build_tensor(ValueId id, const Value& state) {
    const Items items = state.kind == ValueKind::kTuple ? state.items : Items();
    if (is(id, ValueKind::kNewTensor) && items.size() == 4) {
        Value made = tree_.at(tensor_v1(items));
        tree_.values[id] = std::move(made);
        return true;
    }
    if (is(id, ValueKind::kTensor) && items.size() == 3 && is(items[0], ValueKind::kBool) &&
        no_hooks(items[2])) {
        tree_.tensors[static_cast<std::size_t>(tree_.at(id).integer)].requires_grad =
            tree_.at(items[0]).flag;
        return true;
    }
    return false;
}

void PickleCalls::finish(ValueId root) {
    std::vector<bool> seen(tree_.values.size(), false);
    Items open{root};
    while (!open.empty()) {
        const ValueId id = open.back();
        open.pop_back();
        if (id == kNoValue || id >= seen.size() || seen[id]) {
            continue;
        }
        seen[id] = true;
        const ValueKind kind = tree_.at(id).kind;
        if (kind == ValueKind::kUnread) {  // what it holds is settled with it
            continue;
        }
        if (kind == ValueKind::kStorage && tree_.at(id).items.empty()) {
            const Value storage = tree_.at(id);
            const bool held = held_type_named(storage.text) != nullptr;
            Value made = make_value(ValueKind::kRebuilt, "storage");
            made.items.push_back(whole_storage(storage));
            made.items.push_back(tree_.add(held ? make_value(ValueKind::kDtype, storage.text)
                                                : make_value(ValueKind::kNone)));
            tree_.values[id] = std::move(made);
            continue;
        }
        if (const std::int64_t which = tree_.at(id).integer;
            kind == ValueKind::kGlobal && (which == kTensorClass || which == kTypedTensorClass)) {
            tree_.values[id].kind = ValueKind::kDtype;
            tree_.values[id].integer = 0;
            tree_.values[id].data.clear();
            continue;
        }
        open.insert(open.end(), tree_.at(id).items.begin(), tree_.at(id).items.end());
        open.push_back(tree_.at(id).attributes);
    }
}

}  // namespace penstock::format
