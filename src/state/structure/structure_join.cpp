// SPDX-License-Identifier: Apache-2.0
#include "state/structure/structure_join.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/grammar.hpp"
#include "state/structure/structure_pen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace penstock::state {

namespace {

using format::Holds;
using format::kNoValue;
using format::shown;
using format::Value;
using format::ValueId;
using format::ValueKind;
using format::ValueTree;

[[noreturn]] void refuse_ranks(const std::string& why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint of all ranks", why));
}

std::string number_key(double real) {
    const bool whole = std::isfinite(real) && real == std::floor(real) && std::abs(real) < 0x1p63;
    return whole ? fmt::format("n{}", static_cast<std::int64_t>(real)) : fmt::format("f{}", real);
}

// Equal for keys that are one key in a dict of Python, where 1, 1.0 and True are.
void append_identity(std::string& out, const ValueTree& tree, ValueId id) {
    const Value& v = tree.at(id);
    switch (v.kind) {
        case ValueKind::kString:
            out += fmt::format("s{}:{}", v.text.size(), v.text);
            return;
        case ValueKind::kBool:
            out += v.flag ? "n1" : "n0";
            return;
        case ValueKind::kInt:
            out += fmt::format("n{}", v.integer);
            return;
        case ValueKind::kFloat:
            out += number_key(v.real);
            return;
        case ValueKind::kTuple:
        case ValueKind::kSize:
            out += '(';
            for (const ValueId item : v.items) {
                append_identity(out, tree, item);
                out += ',';
            }
            out += ')';
            return;
        default:
            out += fmt::format("{}:{}:{}:{}:{}:{}:{}", static_cast<int>(v.kind), v.text.size(),
                               v.text, v.data.size(), v.data, v.real, v.imaginary);
    }
}

std::string identity(const ValueTree& tree, ValueId id) {
    std::string out;
    append_identity(out, tree, id);
    return out;
}

bool has_tensors(const ValueTree& tree, ValueId root) {
    std::set<ValueId> seen;
    std::vector<ValueId> left{root};
    while (!left.empty()) {
        const ValueId id = left.back();
        left.pop_back();
        const Value& v = tree.at(id);
        if (v.kind == ValueKind::kTensor) {
            return true;
        }
        if (seen.insert(id).second) {
            left.insert(left.end(), v.items.begin(), v.items.end());
            if (v.attributes != kNoValue) {
                left.push_back(v.attributes);
            }
        }
    }
    return false;
}

std::set<std::string> elements(const ValueTree& tree, const Value& set) {
    std::set<std::string> out;
    for (const ValueId item : set.items) {
        out.insert(identity(tree, item));
    }
    return out;
}

}  // namespace

// Adds one rank.
class StructureMerge {
public:
    StructureMerge(StructureJoin& into, const ValueTree& from, StructureText&& read)
        : into_(into),
          from_(from),
          read_(std::move(read)),
          known_storages_(into.storages_.size()),
          to_(from.values.size(), kNoValue),
          tensor_to_(read_.tensors.size(), kNoValue),
          is_used_(read_.storages.size(), false),
          is_met_(read_.storages.size(), false) {}

    void run() {
        if (into_.tree_.values.empty()) {
            into_.tree_.root = copy(from_.root);
            return;
        }
        merge(into_.tree_.root, from_.root);
        for (std::size_t s = 0; s < is_used_.size(); ++s) {
            const std::string& name = read_.storages[s].name;
            const auto known = into_.storage_numbers_.find(name);
            if (is_used_[s] && !is_met_[s] && known->second < known_storages_) {
                refuse_ranks(fmt::format(
                    "tensor {} is at another place on {} than on {}; two tensors have one name if "
                    "their keys are equal when joined by dots: rename a key",
                    shown(name), into_.ranks_.back(),
                    into_.ranks_[into_.storage_brought_[known->second]]));
            }
        }
    }

private:
    // Refuses it, unless the first is taken.
    void differ(ValueId joined, ValueId id, const std::string& how) {
        const std::string what =
            fmt::format("{}: {} on {} than on {}", path_.text(from_), how, into_.ranks_.back(),
                        into_.ranks_[into_.brought_[joined]]);
        if (!into_.first_ || has_tensors(into_.tree_, joined) || has_tensors(from_, id)) {
            refuse_ranks(what + "; what each rank has for itself goes into a PerRank");
        }
        into_.difference_ =
            into_.difference_.empty() ? what + ": that of the first was saved" : into_.difference_;
    }

    // ---- what no rank had before

    ValueId copy(ValueId id) {
        if (to_[id] != kNoValue) {
            return to_[id];
        }
        to_[id] = into_.tree_.add({});
        into_.brought_.push_back(into_.ranks_.size() - 1);
        Value value = from_.at(id);
        for (ValueId& item : value.items) {
            item = copy(item);
        }
        value.attributes = value.attributes == kNoValue ? kNoValue : copy(value.attributes);
        if (value.kind == ValueKind::kTensor) {
            value.integer = copy_tensor(static_cast<std::size_t>(value.integer));
        }
        into_.tree_.values[to_[id]] = std::move(value);
        return to_[id];
    }

    std::int64_t copy_tensor(std::size_t tensor) {
        if (tensor_to_[tensor] == kNoValue) {
            tensor_to_[tensor] = static_cast<std::uint32_t>(into_.tensors_.size());
            WrittenTensor entry = read_.tensors[tensor];
            is_used_[entry.storage] = true;
            entry.storage = storage(read_.storages[entry.storage]);
            into_.tensors_.push_back(std::move(entry));
        }
        return tensor_to_[tensor];
    }

    std::uint64_t storage(const WrittenStorage& entry) {
        const auto [found, is_new] =
            into_.storage_numbers_.emplace(entry.name, into_.storages_.size());
        if (is_new) {
            into_.storages_.push_back(entry);
            into_.storage_brought_.push_back(into_.ranks_.size() - 1);
        }
        return found->second;
    }

    // ---- what an earlier rank has, too

    void merge(ValueId joined, ValueId id) {
        if (!seen_.emplace(joined, id).second) {
            return;
        }
        to_[id] = to_[id] == kNoValue ? joined : to_[id];
        const Value& v = from_.at(id);
        const Value& before = into_.tree_.at(joined);
        if (before.kind != v.kind) {
            return differ(joined, id, "a value of another type");
        }
        if (!format::same_alone(before, v)) {
            return differ(joined, id, "another value");
        }
        if ((before.attributes == kNoValue) != (v.attributes == kNoValue)) {
            return differ(joined, id, "other attributes");
        }
        switch (format::row_of(v.kind).holds) {
            case Holds::kEntries:
                entries(joined, v);
                break;
            case Holds::kKeys:
                if (elements(into_.tree_, into_.tree_.at(joined)) != elements(from_, v)) {
                    differ(joined, id, "other elements");
                }
                break;
            case Holds::kItems:
            case Holds::kIntegers:
                items(joined, id);
                break;
            case Holds::kNothing:
                break;
        }
        if (v.kind == ValueKind::kTensor) {
            tensor(joined, id);
        }
        if (v.attributes != kNoValue) {
            path_.enter_attributes();
            merge(into_.tree_.at(joined).attributes, v.attributes);
            path_.leave();
        }
    }

    void items(ValueId joined, ValueId id) {
        const Value& v = from_.at(id);
        const std::size_t count = into_.tree_.at(joined).items.size();
        if (count != v.items.size()) {
            return differ(joined, id, fmt::format("{} items, and not {},", v.items.size(), count));
        }
        for (std::size_t i = 0; i < count; ++i) {
            path_.enter_index(i);
            merge(into_.tree_.at(joined).items[i], v.items[i]);
            path_.leave();
        }
    }

    void entries(ValueId joined, const Value& v) {
        const std::vector<ValueId> before = into_.tree_.at(joined).items;
        std::unordered_map<std::string, std::size_t> places;  // made at the first that is elsewhere
        for (std::size_t i = 0; i < v.items.size(); i += 2) {
            path_.enter_key(v.items[i]);
            std::size_t at = i < before.size() && same_key(before[i], v.items[i]) ? i : SIZE_MAX;
            if (at == SIZE_MAX) {
                for (std::size_t k = places.empty() ? 0 : before.size(); k < before.size();
                     k += 2) {
                    places.emplace(identity(into_.tree_, before[k]), k);
                }
                const auto found = places.find(identity(from_, v.items[i]));
                at = found == places.end() ? SIZE_MAX : found->second;
            }
            if (at == SIZE_MAX) {
                const ValueId key = copy(v.items[i]);
                const ValueId value = copy(v.items[i + 1]);
                std::vector<ValueId>& items = into_.tree_.values[joined].items;
                items.insert(items.end(), {key, value});
            } else {
                merge(before[at], v.items[i]);
                merge(before[at + 1], v.items[i + 1]);
            }
            path_.leave();
        }
    }

    [[nodiscard]] bool same_key(ValueId joined, ValueId id) const {
        const Value& a = into_.tree_.at(joined);
        const Value& b = from_.at(id);
        return a.kind == b.kind && (a.kind == ValueKind::kString || a.kind == ValueKind::kInt) &&
               a.text == b.text && a.integer == b.integer;
    }

    void tensor(ValueId joined, ValueId id) {
        const WrittenTensor& there =
            into_.tensors_[static_cast<std::size_t>(into_.tree_.at(joined).integer)];
        const WrittenTensor& here = read_.tensors[static_cast<std::size_t>(from_.at(id).integer)];
        const std::string& name = read_.storages[here.storage].name;
        const std::string& other = into_.storages_[there.storage].name;
        if (name != other) {
            differ(joined, id,
                   fmt::format("kept as tensor {}, and not as {},", shown(name), shown(other)));
        }
        if (there.flags != here.flags || there.dtype != here.dtype || there.offset != here.offset ||
            there.shape != here.shape || there.strides != here.strides) {
            differ(joined, id, "a tensor of another type, shape, layout or flag");
        }
        is_met_[here.storage] = true;
    }

    StructureJoin& into_;
    const ValueTree& from_;
    const StructureText read_;
    const std::size_t known_storages_;
    std::vector<ValueId> to_;
    std::vector<std::uint32_t> tensor_to_;
    std::vector<bool> is_used_;  // storages of this rank: by a value that no rank had before
    std::vector<bool> is_met_;   // by a tensor that stands at the same place on an earlier rank
    std::set<std::pair<ValueId, ValueId>> seen_;
    format::ValuePath path_;
};

void StructureJoin::add(std::string_view structure, std::span<const StoredTensor> tensors,
                        std::string rank) {
    const bool is_null = structure == "null";
    if (!ranks_.empty() && is_null != is_null_) {
        refuse_ranks(fmt::format("only one of {} and {} has a structure", ranks_.front(), rank));
    }
    is_null_ = is_null;
    ranks_.push_back(std::move(rank));
    if (!is_null) {
        const Skeleton checked = skeleton_of(structure, tensors);
        auto read = parse_structure(structure, tensors.size());
        PENSTOCK_ASSERT(read);
        StructureMerge(*this, checked.tree, std::move(*read)).run();
    }
}

std::string StructureJoin::text() const {
    PENSTOCK_ASSERT(!ranks_.empty());
    return is_null_ ? "null" : text_of({tree_.values, tensors_, storages_});
}

}  // namespace penstock::state
