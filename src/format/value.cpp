// SPDX-License-Identifier: Apache-2.0
#include "format/value.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "format/torch_types.hpp"

#include <fmt/format.h>

#include <bit>
#include <unordered_map>

namespace penstock::format {

namespace {

// Elements of a key, counted until there are too many; -1 where something in it has no hash.
int key_elements(const ValueTree& tree, ValueId id, int room) {
    const Value& value = tree.at(id);
    switch (value.kind) {
        case ValueKind::kNone:
        case ValueKind::kBool:
        case ValueKind::kInt:
        case ValueKind::kBigInt:
        case ValueKind::kFloat:
        case ValueKind::kComplex:
        case ValueKind::kString:
        case ValueKind::kBytes:
        case ValueKind::kDtype:
        case ValueKind::kDevice:
        case ValueKind::kNumpyScalar:
            return 1;
        case ValueKind::kTuple:
        case ValueKind::kSize: {
            int total = 1;
            for (const ValueId item : value.items) {
                const int more = total <= room ? key_elements(tree, item, room - total) : room;
                if (more < 0 || total + more > room) {
                    return -1;
                }
                total += more;
            }
            return total;
        }
        default:
            return -1;
    }
}

// Compares two trees, each value once: `matched` says which value of b a value of a stands for.
class Comparison {
public:
    Comparison(const ValueTree& a, const ValueTree& b) : a_(a), b_(b) {}

    bool run() {
        open_.emplace_back(a_.root, b_.root);
        while (!open_.empty()) {
            const auto [x, y] = open_.back();
            open_.pop_back();
            if ((x == kNoValue) != (y == kNoValue)) {
                return false;
            }
            if (x != kNoValue && !values(x, y)) {
                return false;
            }
        }
        return true;
    }

private:
    static bool container(ValueKind kind) {
        return kind == ValueKind::kList || kind == ValueKind::kSet || kind == ValueKind::kDict ||
               kind == ValueKind::kOrderedDict || kind == ValueKind::kDefaultDict;
    }

    bool values(ValueId x, ValueId y) {
        const Value& v = a_.at(x);
        const Value& w = b_.at(y);
        const auto bits = [](double d) { return std::bit_cast<std::uint64_t>(d); };
        if (v.kind != w.kind || v.flag != w.flag || v.text != w.text || v.data != w.data ||
            bits(v.real) != bits(w.real) || bits(v.imaginary) != bits(w.imaginary) ||
            v.items.size() != w.items.size()) {
            return false;
        }
        if (v.kind == ValueKind::kTensor) {
            return tensors(a_.tensors[static_cast<std::size_t>(v.integer)],
                           b_.tensors[static_cast<std::size_t>(w.integer)]);
        }
        if (v.integer != w.integer) {
            return false;
        }
        const auto [known, fresh] = matched_.emplace(x, y);
        if (!fresh) {
            return known->second == y || !container(v.kind);  // what cannot change may be copied
        }
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            open_.emplace_back(v.items[i], w.items[i]);
        }
        open_.emplace_back(v.attributes, w.attributes);
        return true;
    }

    bool tensors(const TensorValue& v, const TensorValue& w) {
        const StorageValue& s = a_.storages[v.storage];
        const StorageValue& t = b_.storages[w.storage];
        const auto [known, fresh] = storages_.emplace(v.storage, w.storage);
        return known->second == w.storage && s.bytes == t.bytes && s.location == t.location &&
               v.type == w.type && v.offset == w.offset && v.shape == w.shape &&
               v.strides == w.strides && v.requires_grad == w.requires_grad &&
               v.parameter == w.parameter && v.conjugated == w.conjugated && v.negated == w.negated;
    }

    const ValueTree& a_;
    const ValueTree& b_;
    std::vector<std::pair<ValueId, ValueId>> open_;
    std::unordered_map<ValueId, ValueId> matched_;
    std::unordered_map<std::uint32_t, std::uint32_t> storages_;
};

}  // namespace

ValueId ValueTree::add(Value value) {
    PENSTOCK_ASSERT(values.size() < kNoValue);
    values.push_back(std::move(value));
    return static_cast<ValueId>(values.size() - 1);
}

bool may_be_key(const ValueTree& tree, ValueId id) {
    return key_elements(tree, id, kKeyElementsMax) >= 0;
}

void append_key(std::string& path, const ValueTree& tree, ValueId key) {
    const Value& value = tree.at(key);
    if (value.kind == ValueKind::kString) {
        path += fmt::format("[{}]", shown(value.text));
    } else if (value.kind == ValueKind::kInt) {
        path += fmt::format("[{}]", value.integer);
    } else if (value.kind == ValueKind::kBool) {
        path += value.flag ? "[True]" : "[False]";
    } else if (value.kind == ValueKind::kNone) {
        path += "[None]";
    } else {
        path += "[...]";
    }
}

std::string ValuePath::text(const ValueTree& tree) const {
    std::string out = "state";
    for (const Step& step : steps_) {
        if (step.key != kNoValue) {
            append_key(out, tree, step.key);
        } else if (step.index == kAttributes) {
            out += ".__dict__";
        } else {
            out += fmt::format("[{}]", step.index);
        }
    }
    return out;
}

bool same(const ValueTree& a, const ValueTree& b) {
    return Comparison(a, b).run();
}

bool fits(const TensorValue& tensor, std::uint64_t storage_bytes) {
    const TorchType* type = torch_type(tensor.type);
    if (type == nullptr || tensor.shape.size() != tensor.strides.size() ||
        tensor.shape.size() > kTensorRankMax) {
        return false;
    }
    const std::uint64_t elements = storage_bytes / type->bytes;
    std::uint64_t last = tensor.offset;  // the furthest element
    bool empty = false;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        if (tensor.shape[d] > INT64_MAX || tensor.strides[d] > INT64_MAX) {
            return false;
        }
        if (tensor.shape[d] == 0) {
            empty = true;
            continue;
        }
        const auto step = base::checked_multiply(tensor.shape[d] - 1, tensor.strides[d]);
        const auto sum = step ? base::checked_add(last, *step) : std::nullopt;
        if (!sum) {
            return false;
        }
        last = *sum;
    }
    if (storage_bytes > INT64_MAX) {
        return false;
    }
    return empty ? tensor.offset <= elements : last < elements;
}

}  // namespace penstock::format
