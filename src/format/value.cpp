// SPDX-License-Identifier: Apache-2.0
#include "format/value.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "format/grammar.hpp"
#include "format/torch_types.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace penstock::format {

namespace {

// Compares two trees, each value once: `matched` maps a value of a to its value of b, and `back`,
// for values that can change, the other way round.
class Comparison {
public:
    Comparison(const ValueTree& a, const ValueTree& b, const SameTensor& same)
        : a_(a),
          b_(b),
          same_(same),
          matched_(a.values.size(), kNoValue),
          back_(b.values.size(), kNoValue) {}

    ValueId run() {
        open_.emplace_back(a_.root, b_.root);
        while (!open_.empty()) {
            const auto [x, y] = open_.back();
            open_.pop_back();
            if (x != kNoValue && (y == kNoValue || !values(x, y))) {
                return x;
            }
        }
        return kNoValue;
    }

private:
    bool values(ValueId x, ValueId y) {
        const Value& v = a_.at(x);
        const Value& w = b_.at(y);
        const bool changes = is_of_state(v.kind) && row_of(v.kind).changes;
        const bool whole = changes || !v.items.empty();
        if (whole && matched_[x] != kNoValue) {
            return matched_[x] == y || (!changes && v.kind != ValueKind::kTuple);
        }
        if (!same_alone(v, w) || v.items.size() != w.items.size() ||
            (v.attributes == kNoValue) != (w.attributes == kNoValue) ||
            (changes && back_[y] != kNoValue)) {
            return false;
        }
        if (v.kind == ValueKind::kTensor &&
            !same_(static_cast<std::uint32_t>(v.integer), static_cast<std::uint32_t>(w.integer))) {
            return false;
        }
        matched_[x] = y;
        back_[y] = changes ? x : back_[y];
        for (std::size_t i = v.items.size(); i-- > 0;) {
            open_.emplace_back(v.items[i], w.items[i]);
        }
        if (v.attributes != kNoValue) {
            open_.emplace_back(v.attributes, w.attributes);
        }
        return true;
    }

    const ValueTree& a_;
    const ValueTree& b_;
    const SameTensor& same_;
    std::vector<std::pair<ValueId, ValueId>> open_;
    std::vector<ValueId> matched_;
    std::vector<ValueId> back_;
};

// Tensors of two trees, storages matched one to one.
class TensorComparison {
public:
    TensorComparison(const ValueTree& a, const ValueTree& b)
        : a_(a), b_(b), matched_(a.storages.size(), kNoValue), back_(b.storages.size(), kNoValue) {}

    bool operator()(std::uint32_t x, std::uint32_t y) {
        const TensorValue& v = a_.tensors[x];
        const TensorValue& w = b_.tensors[y];
        const StorageValue& s = a_.storages[v.storage];
        const StorageValue& t = b_.storages[w.storage];
        if (matched_[v.storage] == kNoValue && back_[w.storage] == kNoValue) {
            matched_[v.storage] = w.storage;
            back_[w.storage] = v.storage;
        }
        return matched_[v.storage] == w.storage && back_[w.storage] == v.storage &&
               s.bytes == t.bytes && s.location == t.location && v.offset == w.offset &&
               same_but_place(v, w);
    }

private:
    const ValueTree& a_;
    const ValueTree& b_;
    std::vector<std::uint32_t> matched_;
    std::vector<std::uint32_t> back_;
};

// Searches for a value, visits each once, and keeps the path to it.
class Search {
public:
    Search(const ValueTree& tree, ValueId wanted)
        : tree_(tree), wanted_(wanted), seen_(tree.values.size(), false) {}

    std::string run() {
        visit(tree_.root, 0);
        return path_.text(tree_);
    }

private:
    bool visit(ValueId id, int depth) {
        if (id == wanted_) {
            return true;
        }
        if (seen_[id] || depth > kNestingMax) {
            return false;
        }
        seen_[id] = true;
        const Value& v = tree_.at(id);
        const bool dict = is_dict(v.kind);
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            dict ? path_.enter_key(v.items[i - i % 2]) : path_.enter_index(i);
            if (visit(v.items[i], depth + 1)) {
                return true;
            }
            path_.leave();
        }
        path_.enter_attributes();
        if (v.attributes != kNoValue && visit(v.attributes, depth + 1)) {
            return true;
        }
        path_.leave();
        return false;
    }

    const ValueTree& tree_;
    const ValueId wanted_;
    std::vector<bool> seen_;
    ValuePath path_;
};

}  // namespace

ValueId ValueTree::add(Value value) {
    PENSTOCK_ASSERT(values.size() < kNoValue);
    values.push_back(std::move(value));
    return static_cast<ValueId>(values.size() - 1);
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
    std::string out = tree.place;
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

std::string place_of(const ValueTree& tree, ValueId id) {
    return Search(tree, id).run();
}

std::string_view shortest_integer(std::string_view digits) {
    const auto byte = [&digits](std::size_t i) {
        return static_cast<unsigned char>(digits[digits.size() - 1 - i]);
    };
    while (digits.size() > 1 &&
           ((byte(0) == 0x00 && byte(1) < 0x80) || (byte(0) == 0xFF && byte(1) >= 0x80))) {
        digits.remove_suffix(1);
    }
    return digits;
}

bool same_but_place(const TensorValue& a, const TensorValue& b) {
    return a.type == b.type && a.shape == b.shape && a.strides == b.strides &&
           a.requires_grad == b.requires_grad && a.parameter == b.parameter &&
           a.conjugated == b.conjugated && a.negated == b.negated;
}

bool same_alone(const Value& a, const Value& b) {
    const auto bits = [](double d) { return std::bit_cast<std::uint64_t>(d); };
    return a.kind == b.kind && a.flag == b.flag && bits(a.real) == bits(b.real) &&
           bits(a.imaginary) == bits(b.imaginary) &&
           (a.kind == ValueKind::kTensor || a.integer == b.integer) &&
           (a.text == b.text || (a.kind == ValueKind::kBigInt &&
                                 shortest_integer(a.text) == shortest_integer(b.text))) &&
           a.data == b.data;
}

ValueId difference(const ValueTree& a, const ValueTree& b, const SameTensor& same) {
    return Comparison(a, b, same).run();
}

ValueId difference(const ValueTree& a, const ValueTree& b) {
    return difference(a, b, TensorComparison(a, b));
}

bool same(const ValueTree& a, const ValueTree& b) {
    return difference(a, b) == kNoValue;
}

bool fits(const TensorValue& tensor, std::uint64_t storage_bytes) {
    const TorchType* type = torch_type(tensor.type);
    if (type == nullptr || tensor.shape.size() != tensor.strides.size() ||
        tensor.shape.size() > kTensorRankMax) {
        return false;
    }
    const std::uint64_t elements = storage_bytes / type->torch_bytes();
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
    return empty ? tensor.offset <= INT64_MAX : last < elements;
}

}  // namespace penstock::format
