// SPDX-License-Identifier: Apache-2.0
// Converts a structure back into a tree. Every entry is read alone; then references between them
// are checked: invalid numbers, keys that have no hash, depth, tuples that contain themselves
// (which cannot be built), tensors that do not lie in their storage.
#include "base/raise.hpp"
#include "format/grammar.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "state/structure/structure.hpp"
#include "state/structure/structure_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace penstock::state {

namespace {

using format::kNoValue;
using format::shown;
using format::TensorValue;
using format::Value;
using format::ValueId;
using format::ValueKind;

// A checkpoint's tensor as torch has it: half a byte has no type there, two halves have one. `row`:
// of the tensor before, mostly of this one too; nullptr: of none.
std::string whole_tensor(const StoredTensor& stored, const tensor::ElementTypeRow*& row,
                         TensorValue& out) {
    if (row == nullptr || row->name != stored.dtype) {
        row = tensor::find_row(
            [&](const auto& r) { return r.name == stored.dtype && r.torch[0] != 0; });
    }
    if (row == nullptr) {
        return fmt::format("tensor {} is of type {}, which torch does not have", shown(stored.name),
                           shown(stored.dtype));
    }
    out.type = row->type;
    out.shape.assign(stored.shape.begin(), stored.shape.end());
    if (row->type == tensor::ElementType::kF4E2M1) {
        if (out.shape.empty() || out.shape.back() % 2 != 0) {
            return fmt::format(
                "tensor {} has an odd number of half bytes in a row, which torch "
                "cannot hold",
                shown(stored.name));
        }
        out.shape.back() /= 2;
    }
    out.strides = packed_strides(out.shape);
    return {};
}

// Checks references between entries. run() returns an empty string, or the error.
class Check {
public:
    explicit Check(const format::ValueTree& tree)
        : tree_(tree), seen_(tree.values.size(), false), tuples_(tree.values.size(), kUnknown) {}

    std::string run() {
        for (std::size_t i = 0; i < tree_.values.size(); ++i) {
            if (std::string wrong = numbers(tree_.values[i]); !wrong.empty()) {
                return fmt::format("value {}: {}", i, wrong);
            }
        }
        return visit(tree_.root, 0) ? std::string() : path_.text(tree_) + ": " + wrong_;
    }

private:
    enum State : std::uint8_t { kUnknown, kOpen, kDone };

    bool refuse(std::string why) {
        wrong_ = std::move(why);
        return false;
    }
    [[nodiscard]] bool is_value(ValueId id) const { return id < tree_.values.size(); }

    [[nodiscard]] std::string numbers(const Value& v) const {
        if (!std::all_of(v.items.begin(), v.items.end(),
                         [this](ValueId i) { return is_value(i); }) ||
            (v.attributes != kNoValue && !is_value(v.attributes))) {
            return "it names a value that is not there";
        }
        return {};
    }

    // Follows only items that must exist before the value that is built from them.
    bool contains_itself(ValueId id, int depth) {
        const Value& v = tree_.at(id);
        if (v.kind != ValueKind::kTuple || tuples_[id] == kDone) {
            return false;
        }
        if (tuples_[id] == kOpen || depth > format::kNestingMax) {
            return true;
        }
        tuples_[id] = kOpen;
        for (const ValueId item : v.items) {
            if (contains_itself(item, depth + 1)) {
                return true;
            }
        }
        tuples_[id] = kDone;
        return false;
    }

    bool visit(ValueId id, int depth) {
        if (seen_[id]) {
            return true;
        }
        seen_[id] = true;
        const Value& v = tree_.at(id);
        if (depth > format::kNestingMax) {
            return refuse(fmt::format("it is nested deeper than {} levels", format::kNestingMax));
        }
        if (contains_itself(id, 0)) {
            return refuse("it is a tuple that contains itself, or is nested too deep");
        }
        if (std::string wrong = format::wrong_with(tree_, v); !wrong.empty()) {
            return refuse(std::move(wrong));
        }
        const bool dict = format::is_dict(v.kind);
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            dict ? path_.enter_key(v.items[i - i % 2]) : path_.enter_index(i);
            if (!visit(v.items[i], depth + 1)) {
                return false;
            }
            path_.leave();
        }
        if (v.attributes == kNoValue) {
            return true;
        }
        path_.enter_attributes();
        if (!visit(v.attributes, depth + 1)) {
            return false;
        }
        path_.leave();
        return true;
    }

    const format::ValueTree& tree_;
    std::vector<bool> seen_;
    std::vector<State> tuples_;
    format::ValuePath path_;
    std::string wrong_;
};

[[noreturn]] void damaged(std::string_view why) {
    base::raise(base::error(ErrorCode::kDamaged, kReadStructure, why));
}

class Builder {
public:
    explicit Builder(std::span<const StoredTensor> tensors) : tensors_(tensors) {}

    Skeleton of_all() {
        Value root;
        root.kind = ValueKind::kDict;
        out_.tree.root = out_.tree.add({});
        for (const StoredTensor& tensor : tensors_) {
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
            if (const std::string wrong = whole_tensor(tensor, type_, t); !wrong.empty()) {
                base::raise(base::error(ErrorCode::kUnsupported, kReadStructure, wrong));
            }
            out_.tree.storages.push_back({tensor.bytes, "cpu", std::string(tensor.name)});
            out_.sources.emplace_back(tensor.name);
        }
        out_.tree.values[out_.tree.root] = std::move(root);
        return std::move(out_);
    }

    Skeleton of(StructureText&& read) {
        if (read.values.empty()) {
            damaged("it has no values");
        }
        sources_.reserve(read.storages.size());
        out_.sources.reserve(read.storages.size());
        out_.tree.storages.reserve(read.storages.size());
        out_.tree.tensors.reserve(read.tensors.size());
        for (WrittenStorage& entry : read.storages) {
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
    // Mostly called in the order of the tensors.
    const StoredTensor* find(std::string_view name) {
        if (const std::size_t next = sources_.size();
            next < tensors_.size() && tensors_[next].name == name) {
            return &tensors_[next];
        }
        if (by_name_.empty()) {
            for (const StoredTensor& tensor : tensors_) {
                by_name_.emplace(tensor.name, &tensor);
            }
        }
        const auto found = by_name_.find(name);
        return found == by_name_.end() ? nullptr : found->second;
    }

    void storage(WrittenStorage& entry) {
        const StoredTensor* found = find(entry.name);
        if (found == nullptr) {
            damaged(fmt::format("it looks into tensor {}, which the checkpoint does not have",
                                shown(entry.name)));
        }
        if (!format::is_device(entry.location) || found->bytes > INT64_MAX) {
            damaged(fmt::format("tensor {} was at {}, which is no device", shown(entry.name),
                                shown(entry.location)));
        }
        sources_.push_back(found);
        out_.tree.storages.push_back({found->bytes, std::move(entry.location), {}});
        out_.sources.push_back(std::move(entry.name));
    }

    std::string tensor(WrittenTensor& entry) {
        if (entry.storage >= out_.sources.size()) {
            return "it names a storage that is not there";
        }
        TensorValue& t = out_.tree.tensors.emplace_back();
        t.storage = static_cast<std::uint32_t>(entry.storage);
        if (entry.dtype.empty()) {
            if (std::string wrong = whole_tensor(*sources_[entry.storage], type_, t);
                !wrong.empty()) {
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

    std::span<const StoredTensor> tensors_;
    std::unordered_map<std::string_view, const StoredTensor*> by_name_;
    std::vector<const StoredTensor*> sources_;
    const tensor::ElementTypeRow* type_ = nullptr;  // of the last whole tensor
    Skeleton out_;
};

}  // namespace

Skeleton skeleton_of(std::string_view structure, std::span<const CheckpointTensor> tensors) {
    std::vector<StoredTensor> stored;
    stored.reserve(tensors.size());
    for (const CheckpointTensor& t : tensors) {
        stored.push_back({t.name, t.dtype, t.shape, t.bytes});
    }
    return skeleton_of(structure, stored);
}

Skeleton skeleton_of(std::string_view structure, std::span<const StoredTensor> tensors) {
    if (structure == "null") {
        return Builder(tensors).of_all();
    }
    auto read = parse_structure(structure, tensors.size());
    if (!read) {
        damaged(read.error().message);
    }
    return Builder(tensors).of(std::move(*read));
}

}  // namespace penstock::state
