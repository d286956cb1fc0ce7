// SPDX-License-Identifier: Apache-2.0
#include "format/rebuilt.hpp"

#include "base/align.hpp"
#include "format/torch_types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace penstock::format {

namespace {

constexpr std::array<std::string_view, 14> kShells{"uint1", "uint2", "uint3", "uint4", "uint5",
                                                   "uint6", "uint7", "int1",  "int2",  "int3",
                                                   "int4",  "int5",  "int6",  "int7"};
constexpr std::array<std::string_view, 5> kSchemes{"per_tensor_affine", "per_tensor_symmetric",
                                                   "per_channel_affine", "per_channel_symmetric",
                                                   "per_channel_affine_float_qparams"};
constexpr std::array<std::string_view, 8> kLayouts{"strided",    "sparse_coo", "sparse_csr",
                                                   "sparse_csc", "sparse_bsr", "sparse_bsc",
                                                   "_mkldnn",    "jagged"};
constexpr std::array<std::string_view, 11> kTensorClasses{
    "Tensor",     "FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "ByteTensor",
    "CharTensor", "ShortTensor", "IntTensor",    "LongTensor", "BoolTensor"};

template <typename Names>
bool has(const Names& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_class(std::string_view name) {
    const bool plain = name == "Tensor";
    for (const std::string_view module : {"cuda.sparse.", "cuda.", "sparse."}) {
        if (name.starts_with(module)) {
            return name.substr(module.size()) != "Tensor" &&
                   has(kTensorClasses, name.substr(module.size()));
        }
    }
    return plain || has(kTensorClasses, name);
}

const TensorValue* tensor_of(const ValueTree& tree, ValueId id) {
    const Value& v = tree.at(id);
    const auto index = static_cast<std::size_t>(v.integer);
    return v.kind == ValueKind::kTensor && index < tree.tensors.size() ? &tree.tensors[index]
                                                                       : nullptr;
}

bool is_whole(const ValueTree& tree, ValueId id) {
    const TensorValue* t = tensor_of(tree, id);
    const TorchType* type = t == nullptr ? nullptr : torch_type(t->type);
    return type != nullptr && t->storage < tree.storages.size() && t->offset == 0 &&
           t->shape.size() == 1 && t->strides.size() == 1 && t->strides[0] == 1 && !t->parameter &&
           !t->requires_grad && !t->conjugated && !t->negated &&
           t->shape[0] == tree.storages[t->storage].bytes / type->torch_bytes() &&
           tree.storages[t->storage].bytes % type->torch_bytes() == 0;
}

bool is_number(const Value& v) {
    return v.kind == ValueKind::kFloat || v.kind == ValueKind::kInt;
}

bool is_index(const Value& v) {
    return v.kind == ValueKind::kInt && v.integer >= 0;
}

bool is_size(const ValueTree& tree, const Value& v) {
    return (v.kind == ValueKind::kTuple || v.kind == ValueKind::kSize) &&
           v.items.size() <= kTensorRankMax &&
           std::all_of(v.items.begin(), v.items.end(),
                       [&](ValueId item) { return is_index(tree.at(item)); });
}

bool is_scale(const ValueTree& tree, ValueId id) {
    const Value& v = tree.at(id);
    return is_number(v) || tensor_of(tree, id) != nullptr ||
           (v.kind == ValueKind::kList &&
            std::all_of(v.items.begin(), v.items.end(),
                        [&](ValueId item) { return is_number(tree.at(item)); }));
}

bool fits_part(const ValueTree& tree, ValueId id, PartKind part) {
    const Value& v = tree.at(id);
    const bool none = v.kind == ValueKind::kNone;
    const bool constant = v.kind == ValueKind::kDtype;
    switch (part) {
        case PartKind::kTensor:
            return tensor_of(tree, id) != nullptr;
        case PartKind::kTensorOrNone:
            return none || tensor_of(tree, id) != nullptr;
        case PartKind::kWhole:
            return is_whole(tree, id);
        case PartKind::kRebuilt: {
            const RebuiltRow* row =
                v.kind == ValueKind::kRebuilt ? rebuilt_tagged(v.text) : nullptr;
            return row != nullptr && row->rebuilt != Rebuilt::kStorage &&
                   row->rebuilt != Rebuilt::kParameter;
        }
        case PartKind::kDtypeOrNone:
            return none || (constant && torch_constant(v.text) == Constant::kDtype);
        case PartKind::kDtype:
            return constant && torch_constant(v.text) == Constant::kDtype;
        case PartKind::kScheme:
            return constant && torch_constant(v.text) == Constant::kScheme;
        case PartKind::kSize:
            return is_size(tree, v);
        case PartKind::kIndex:
            return is_index(v);
        case PartKind::kIndexOrNone:
            return none || is_index(v);
        case PartKind::kBool:
            return v.kind == ValueKind::kBool;
        case PartKind::kBoolOrNone:
            return none || v.kind == ValueKind::kBool;
        case PartKind::kScale:
            return is_scale(tree, id);
    }
    return false;
}

// Elements of a type of which several are in a unit of the storage: the last one lies in it.
std::string wrong_quantized(const ValueTree& tree, const Value& v) {
    const HeldType* held = held_type_named(tree.at(v.items[1]).text);
    const TensorValue& whole = *tensor_of(tree, v.items[0]);
    if (held == nullptr || !held->name.starts_with('q') || whole.type != held->held) {
        return "a quantized tensor is of a type that its storage does not hold";
    }
    const bool by_channel = tree.at(v.items[5]).text.starts_with("per_channel");
    if (by_channel == (tree.at(v.items[8]).kind == ValueKind::kNone)) {
        return "a quantized tensor has an axis where its scheme has none, or lacks one";
    }
    const bool one = is_number(tree.at(v.items[6])) && is_number(tree.at(v.items[7]));
    const bool none = !is_number(tree.at(v.items[6])) && !is_number(tree.at(v.items[7]));
    if (by_channel ? !none : !one) {
        return "a quantized tensor has scales that its scheme does not have";
    }
    const std::vector<ValueId>& size = tree.at(v.items[3]).items;
    const std::vector<ValueId>& stride = tree.at(v.items[4]).items;
    if (by_channel && tree.at(v.items[8]).integer >= static_cast<std::int64_t>(size.size())) {
        return "a quantized tensor has scales along an axis that it does not have";
    }
    const auto number = [&](ValueId id) { return static_cast<std::uint64_t>(tree.at(id).integer); };
    std::optional<std::uint64_t> last = number(v.items[2]);
    bool empty = false;
    for (std::size_t d = 0; d < size.size() && size.size() == stride.size(); ++d) {
        empty = empty || number(size[d]) == 0;
        const auto step = number(size[d]) == 0
                              ? std::optional<std::uint64_t>(0)
                              : base::checked_multiply(number(size[d]) - 1, number(stride[d]));
        last = last && step ? base::checked_add(*last, *step) : std::nullopt;
    }
    return size.size() == stride.size() && last &&
                   (empty || *last / held->elements_a_unit < whole.shape[0])
               ? std::string()
               : "a quantized tensor does not lie in its storage";
}

std::string wrong_view(const ValueTree& tree, const Value& v) {
    const HeldType* held = held_type_named(tree.at(v.items[1]).text);
    const TensorValue& bits = *tensor_of(tree, v.items[0]);
    return held != nullptr && held->storage.empty() && held->held == bits.type && !bits.parameter &&
                   !bits.requires_grad && !bits.conjugated && !bits.negated
               ? std::string()
               : "a tensor of bits is of a type that its storage does not hold";
}

std::string wrong_storage(const ValueTree& tree, const Value& v) {
    const Value& dtype = tree.at(v.items[1]);
    const HeldType* held = dtype.kind == ValueKind::kDtype ? held_type_named(dtype.text) : nullptr;
    return dtype.kind == ValueKind::kNone || (held != nullptr && !held->storage.empty() &&
                                              held->held == tensor_of(tree, v.items[0])->type)
               ? std::string()
               : "a storage is of a type that it does not hold";
}

// Offsets past the values are checked where the data is read.
std::string wrong_jagged(const ValueTree& tree, const Value& v) {
    const TensorValue& values = *tensor_of(tree, v.items[0]);
    const TensorValue& offsets = *tensor_of(tree, v.items[1]);
    const TensorValue* lengths = tensor_of(tree, v.items[2]);
    const auto counts = [](const TensorValue& t) {
        return t.shape.size() == 1 &&
               (t.type == tensor::ElementType::kI64 || t.type == tensor::ElementType::kI32);
    };
    if (!counts(offsets) || offsets.shape[0] == 0 ||
        (lengths != nullptr && (!counts(*lengths) || lengths->shape[0] != offsets.shape[0] - 1))) {
        return "a jagged tensor has offsets or lengths that are not one row of integers";
    }
    const std::int64_t ragged = tree.at(v.items[5]).integer;
    if (ragged < 1 || static_cast<std::uint64_t>(ragged) > values.shape.size()) {
        return "a jagged tensor has a ragged dimension that its values do not have";
    }
    for (const std::size_t extreme : {3U, 4U}) {
        const TensorValue* t = tensor_of(tree, v.items[extreme]);
        if (t != nullptr && t->shape.empty()) {
            return "a jagged tensor has a least or greatest length without a dimension";
        }
    }
    return {};
}

// The place-holder that torch writes of a range of a dimension.
constexpr std::string_view kDimRange = "torch._dynamo.decorators._DimRange";

bool is_content_of_hint(const ValueTree& tree, ValueId id, int depth) {
    constexpr int kDepthMax = 5;
    const Value& v = tree.at(id);
    switch (v.kind) {
        case ValueKind::kNone:
        case ValueKind::kBool:
        case ValueKind::kInt:
        case ValueKind::kString:
            return true;
        case ValueKind::kUnread:
            if (v.text != kDimRange || v.flag) {
                return false;
            }
            [[fallthrough]];
        case ValueKind::kList:
        case ValueKind::kTuple:
        case ValueKind::kSet:
        case ValueKind::kDict:
            return depth < kDepthMax && v.attributes == kNoValue &&
                   std::all_of(v.items.begin(), v.items.end(), [&](ValueId item) {
                       return is_content_of_hint(tree, item, depth + 1);
                   });
        default:
            return false;
    }
}

}  // namespace

bool is_compile_hint(std::string_view attribute) {
    return attribute.starts_with("_dynamo_") || attribute == "_specialize_on" ||
           attribute == "_has_dynamo_dim_marking";
}

void drop_compile_hints(ValueTree& tree, ValueId id) {
    const ValueId own = tree.at(id).attributes;
    if (own == kNoValue || tree.at(own).kind != ValueKind::kDict) {
        return;
    }
    Value kept;
    kept.kind = ValueKind::kDict;
    const std::vector<ValueId>& all = tree.at(own).items;
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
        if (tree.at(all[i]).kind != ValueKind::kString || !is_compile_hint(tree.at(all[i]).text) ||
            !is_content_of_hint(tree, all[i + 1], 0)) {
            kept.items.insert(kept.items.end(), {all[i], all[i + 1]});
        }
    }
    if (kept.items.size() != all.size()) {
        const bool none = kept.items.empty();
        const ValueId rest = none ? kNoValue : tree.add(std::move(kept));
        tree.values[id].attributes = rest;
    }
}

const RebuiltRow* rebuilt_tagged(std::string_view tag) {
    const auto* const found = std::find_if(kRebuilt.begin(), kRebuilt.end(),
                                           [tag](const RebuiltRow& row) { return row.tag == tag; });
    return found == kRebuilt.end() ? nullptr : found;
}

const RebuiltRow* sparse_of_layout(std::string_view layout) {
    return layout.starts_with("sparse_") ? rebuilt_tagged(layout) : nullptr;
}

const HeldType* held_type_named(std::string_view name) {
    const auto* const found = std::find_if(kHeldTypes.begin(), kHeldTypes.end(),
                                           [name](const HeldType& t) { return t.name == name; });
    return found == kHeldTypes.end() ? nullptr : found;
}

const HeldType* held_type_of_storage(std::string_view storage_class) {
    const auto* const found =
        std::find_if(kHeldTypes.begin(), kHeldTypes.end(), [storage_class](const HeldType& t) {
            return !t.storage.empty() && t.storage == storage_class;
        });
    return found == kHeldTypes.end() ? nullptr : found;
}

Constant torch_constant(std::string_view name) {
    if (torch_type_named(name) != nullptr || held_type_named(name) != nullptr ||
        has(kShells, name)) {
        return Constant::kDtype;
    }
    if (has(kSchemes, name)) {
        return Constant::kScheme;
    }
    if (has(kLayouts, name)) {
        return Constant::kLayout;
    }
    return is_class(name) ? Constant::kClass : Constant::kNone;
}

std::string wrong_rebuilt(const ValueTree& tree, const Value& v) {
    const RebuiltRow* row = rebuilt_tagged(v.text);
    if (row == nullptr || v.items.size() != row->count) {
        return "it is an object of torch that is not read, or has too few parts";
    }
    for (std::size_t i = 0; i < row->count; ++i) {
        if (!fits_part(tree, v.items[i], row->parts[i].part)) {
            return fmt::format("its part {} is not what a {} of torch has", row->parts[i].name,
                               row->tag);
        }
    }
    switch (row->rebuilt) {
        case Rebuilt::kQuantized:
            return wrong_quantized(tree, v);
        case Rebuilt::kView:
            return wrong_view(tree, v);
        case Rebuilt::kStorage:
            return wrong_storage(tree, v);
        case Rebuilt::kJagged:
            return wrong_jagged(tree, v);
        case Rebuilt::kMeta:
            return tree.at(v.items[1]).items.size() == tree.at(v.items[2]).items.size()
                       ? std::string()
                       : "a tensor of the meta device has more strides than extents, or fewer";
        default:
            return {};
    }
}

}  // namespace penstock::format
