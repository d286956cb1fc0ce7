// SPDX-License-Identifier: Apache-2.0
// A structure back into a tree. Every entry is read by itself; then, when all are there, what they
// say of one another is checked: numbers that name nothing, keys that have no hash, depth, tuples
// that contain themselves (which cannot be built), tensors that do not lie in their storage.
#include "base/align.hpp"
#include "base/raise.hpp"
#include "checkpoint/structure.hpp"
#include "checkpoint/structure_text.hpp"
#include "format/numpy_types.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace penstock::checkpoint {

namespace {

using format::kNoValue;
using format::shown;
using format::TensorValue;
using format::Value;
using format::ValueId;
using format::ValueKind;

constexpr std::string_view kReading = "read structure of checkpoint";
constexpr std::array<std::string_view, 10> kFactories{
    "list", "dict", "int", "float", "str", "bool", "tuple", "set", "frozenset", "OrderedDict"};

// Of a checkpoint's tensor as torch has it: half a byte has no type there, two of them have.
std::string whole_tensor(const CheckpointTensor& tensor, TensorValue& out) {
    const auto type = format::safetensors::type_named(tensor.dtype);
    if (!type || format::torch_type(*type) == nullptr) {
        return fmt::format("tensor {} is of type {}, which torch does not have", shown(tensor.name),
                           shown(tensor.dtype));
    }
    out.type = *type;
    out.shape = tensor.shape;
    if (*type == tensor::ElementType::kF4E2M1) {
        if (out.shape.empty() || out.shape.back() % 2 != 0) {
            return fmt::format(
                "tensor {} has an odd number of half bytes in a row, which torch "
                "cannot hold",
                shown(tensor.name));
        }
        out.shape.back() /= 2;
    }
    out.strides = packed_strides(out.shape);
    return {};
}

// What entries say of one another. Each call returns an empty string, or what is wrong.
class Check {
public:
    explicit Check(const format::ValueTree& tree)
        : tree_(tree), seen_(tree.values.size(), false), tuples_(tree.values.size(), kUnknown) {}

    std::string run() {
        for (std::size_t i = 0; i < tree_.values.size() && wrong_.empty(); ++i) {
            at_ = i;
            value(tree_.values[i]);
        }
        for (std::size_t i = 0; i < tree_.values.size() && wrong_.empty(); ++i) {
            at_ = i;
            tuple(static_cast<ValueId>(i), 0);
        }
        if (wrong_.empty()) {
            at_ = 0;
            visit(tree_.root, 0);
        }
        return wrong_.empty() ? std::string() : fmt::format("value {}: {}", at_, wrong_);
    }

private:
    enum State : std::uint8_t { kUnknown, kOpen, kDone };

    bool refuse(std::string why) {
        wrong_ = std::move(why);
        return false;
    }
    [[nodiscard]] bool is_value(ValueId id) const { return id < tree_.values.size(); }

    bool value(const Value& v) {
        if (!std::all_of(v.items.begin(), v.items.end(),
                         [this](ValueId i) { return is_value(i); }) ||
            (v.attributes != kNoValue && !is_value(v.attributes))) {
            return refuse("it names a value that is not there");
        }
        if (is_dict(v.kind) && v.items.size() % 2 != 0) {
            return refuse("it has a key without a value");
        }
        switch (v.kind) {
            case ValueKind::kTensor:
                return static_cast<std::uint64_t>(v.integer) < tree_.tensors.size() ||
                       refuse("it names a tensor that is not there");
            case ValueKind::kBigInt:
                return (v.text.size() > 8 && v.text.size() <= (64U << 10U)) ||
                       refuse("it is an integer of an impossible size");
            case ValueKind::kDtype:
                return format::torch_type_named(v.text) != nullptr ||
                       refuse("it is no dtype of torch");
            case ValueKind::kDevice:
                return format::is_device(v.text) || refuse("it is no device");
            case ValueKind::kDefaultDict:
                return v.text.empty() ||
                       std::find(kFactories.begin(), kFactories.end(), v.text) !=
                           kFactories.end() ||
                       refuse("it makes " + shown(v.text) + ", which is not allowed");
            case ValueKind::kOrderedDict:
                return attributes(v);
            case ValueKind::kSize:
                return extents(v);
            case ValueKind::kNumpyScalar:
            case ValueKind::kNumpyArray:
                return numpy(v);
            default:
                return true;
        }
    }

    bool attributes(const Value& v) {
        if (v.attributes == kNoValue) {
            return true;
        }
        const Value& own = tree_.at(v.attributes);
        for (std::size_t i = 0; i < own.items.size(); i += 2) {
            if (!is_value(own.items[i]) || tree_.at(own.items[i]).kind != ValueKind::kString) {
                return refuse("it has an attribute whose name is no string");
            }
        }
        return own.kind == ValueKind::kDict || refuse("its attributes are no dict");
    }

    bool extents(const Value& v) {
        for (const ValueId item : v.items) {
            if (tree_.at(item).kind != ValueKind::kInt || tree_.at(item).integer < 0) {
                return refuse("it has an extent that is no size");
            }
        }
        return v.items.size() <= format::kTensorRankMax || refuse("it has too many dimensions");
    }

    bool numpy(const Value& v) {
        if (!extents(v)) {
            return false;
        }
        auto bytes = format::numpy_item_bytes(v.text);
        for (const ValueId item : v.items) {
            bytes = bytes ? base::checked_multiply(
                                *bytes, static_cast<std::uint64_t>(tree_.at(item).integer))
                          : bytes;
        }
        return (bytes && *bytes == v.data.size()) ||
               refuse(fmt::format("NumPy's {} of its shape does not have {} bytes, or is not read",
                                  shown(v.text), v.data.size()));
    }

    bool tuple(ValueId id, int depth) {
        const Value& v = tree_.at(id);
        if (v.kind != ValueKind::kTuple || tuples_[id] == kDone) {
            return true;
        }
        if (tuples_[id] == kOpen || depth > format::kNestingMax) {
            return refuse("it is a tuple that contains itself, or is nested too deep");
        }
        tuples_[id] = kOpen;
        for (const ValueId item : v.items) {
            if (!tuple(item, depth + 1)) {
                return false;
            }
        }
        tuples_[id] = kDone;
        return true;
    }

    bool visit(ValueId id, int depth) {
        if (seen_[id]) {
            return true;
        }
        seen_[id] = true;
        const Value& v = tree_.at(id);
        at_ = id;
        if (depth > format::kNestingMax) {
            return refuse(fmt::format("it is nested deeper than {} levels", format::kNestingMax));
        }
        const bool keys = v.kind == ValueKind::kSet || v.kind == ValueKind::kFrozenSet;
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            const bool key = keys || (is_dict(v.kind) && i % 2 == 0);
            if (key && !format::may_be_key(tree_, v.items[i])) {
                at_ = id;
                return refuse("it has a key that is not a string, a number, or a short tuple");
            }
            if (!visit(v.items[i], depth + 1)) {
                return false;
            }
        }
        return v.attributes == kNoValue || visit(v.attributes, depth + 1);
    }

    const format::ValueTree& tree_;
    std::vector<bool> seen_;
    std::vector<State> tuples_;
    std::size_t at_ = 0;
    std::string wrong_;
};

[[noreturn]] void damaged(std::string_view why) {
    base::raise(base::error(ErrorCode::kDamaged, kReading, why));
}

class Builder {
public:
    explicit Builder(std::span<const CheckpointTensor> tensors) : tensors_(tensors) {}

    Skeleton of_all() {
        Value root;
        root.kind = ValueKind::kDict;
        out_.tree.root = out_.tree.add({});
        for (const CheckpointTensor& tensor : tensors_) {
            Value key;
            key.kind = ValueKind::kString;
            key.text = tensor.name;
            root.items.push_back(out_.tree.add(std::move(key)));
            Value value;
            value.kind = ValueKind::kTensor;
            value.integer = static_cast<std::int64_t>(out_.tree.tensors.size());
            root.items.push_back(out_.tree.add(std::move(value)));
            TensorValue& t = out_.tree.tensors.emplace_back();
            t.storage = static_cast<std::uint32_t>(out_.sources.size());
            if (const std::string wrong = whole_tensor(tensor, t); !wrong.empty()) {
                base::raise(base::error(ErrorCode::kUnsupported, kReading, wrong));
            }
            out_.tree.storages.push_back({tensor.bytes, "cpu", tensor.name});
            out_.sources.push_back(tensor.name);
        }
        out_.tree.values[out_.tree.root] = std::move(root);
        return std::move(out_);
    }

    Skeleton of(StructureText&& read) {
        if (read.values.empty()) {
            damaged("it has no values");
        }
        for (const CheckpointTensor& tensor : tensors_) {
            by_name_.emplace(tensor.name, &tensor);
        }
        for (StorageEntry& entry : read.storages) {
            storage(entry);
        }
        for (std::size_t i = 0; i < read.tensors.size(); ++i) {
            if (const std::string wrong = tensor(read.tensors[i]); !wrong.empty()) {
                damaged(fmt::format("tensor number {}: {}", i, wrong));
            }
        }
        out_.tree.values = std::move(read.values);
        out_.tree.root = 0;
        if (const std::string wrong = Check(out_.tree).run(); !wrong.empty()) {
            damaged(wrong);
        }
        return std::move(out_);
    }

private:
    void storage(StorageEntry& entry) {
        const auto found = by_name_.find(entry.name);
        if (found == by_name_.end()) {
            damaged(fmt::format("it looks into tensor {}, which the checkpoint does not have",
                                shown(entry.name)));
        }
        if (!format::is_device(entry.location) || found->second->bytes > INT64_MAX) {
            damaged(fmt::format("tensor {} was at {}, which is no device", shown(entry.name),
                                shown(entry.location)));
        }
        sources_.push_back(found->second);
        out_.tree.storages.push_back({found->second->bytes, std::move(entry.location), entry.name});
        out_.sources.push_back(std::move(entry.name));
    }

    std::string tensor(TensorEntry& entry) {
        if (entry.storage >= out_.sources.size()) {
            return "it names a storage that is not there";
        }
        TensorValue& t = out_.tree.tensors.emplace_back();
        t.storage = static_cast<std::uint32_t>(entry.storage);
        if (entry.dtype.empty()) {
            if (std::string wrong = whole_tensor(*sources_[entry.storage], t); !wrong.empty()) {
                return wrong;
            }
        } else {
            const format::TorchType* type = format::torch_type_named(entry.dtype);
            if (type == nullptr) {
                return "torch has no type " + shown(entry.dtype);
            }
            t.type = type->type;
            t.offset = entry.offset;
            t.shape = std::move(entry.shape);
            t.strides = std::move(entry.strides);
        }
        if (!format::fits(t, out_.tree.storages[t.storage].bytes)) {
            return "it does not lie in its storage";
        }
        for (const char c : entry.flags) {
            bool* const flag = c == 'p'   ? &t.parameter
                               : c == 'g' ? &t.requires_grad
                               : c == 'c' ? &t.conjugated
                               : c == 'n' ? &t.negated
                                          : nullptr;
            if (flag == nullptr || *flag) {
                return "it has properties that are not known: " + shown(entry.flags);
            }
            *flag = true;
        }
        return {};
    }

    std::span<const CheckpointTensor> tensors_;
    std::unordered_map<std::string_view, const CheckpointTensor*> by_name_;
    std::vector<const CheckpointTensor*> sources_;
    Skeleton out_;
};

}  // namespace

Skeleton skeleton_of(std::string_view structure, std::span<const CheckpointTensor> tensors) {
    if (structure == "null") {
        return Builder(tensors).of_all();
    }
    auto read = parse_structure(structure);
    if (!read) {
        damaged(read.error().message);
    }
    return Builder(tensors).of(std::move(*read));
}

}  // namespace penstock::checkpoint
