// SPDX-License-Identifier: Apache-2.0
#include "state/structure/per_rank.hpp"

#include "format/grammar.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace penstock::state {

namespace {

using format::kNoValue;
using format::Value;
using format::ValueId;
using format::ValueKind;
using format::ValueTree;

bool has_any(const ValueTree& tree) {
    return std::any_of(tree.values.begin(), tree.values.end(),
                       [](const Value& v) { return v.kind == ValueKind::kPerRank; });
}

// Calls `see(id)` once for each value below `from`, those included; it says whether to go on below.
template <typename See>
void walk(const ValueTree& tree, std::vector<ValueId> from, const See& see) {
    std::vector<bool> seen(tree.values.size(), false);
    while (!from.empty()) {
        const ValueId id = from.back();
        from.pop_back();
        if (seen[id]) {
            continue;
        }
        seen[id] = true;
        if (see(id)) {
            const Value& v = tree.at(id);
            from.insert(from.end(), v.items.begin(), v.items.end());
            if (v.attributes != kNoValue) {
                from.push_back(v.attributes);
            }
        }
    }
}

}  // namespace

std::string wrong_per_rank(const ValueTree& tree) {
    if (!has_any(tree)) {
        return {};
    }
    std::vector<ValueId> below;  // what is in one
    std::vector<bool> outside(tree.storages.size(), false);
    const auto storage_of = [&](const Value& v) {
        return tree.tensors[static_cast<std::size_t>(v.integer)].storage;
    };
    walk(tree, {tree.root}, [&](ValueId id) {
        const Value& v = tree.at(id);
        if (v.kind == ValueKind::kPerRank) {
            below.insert(below.end(), v.items.begin(), v.items.end());
        } else if (v.kind == ValueKind::kTensor) {
            outside[storage_of(v)] = true;
        }
        return v.kind != ValueKind::kPerRank;
    });
    std::string wrong;
    walk(tree, below, [&](ValueId id) {
        const Value& v = tree.at(id);
        if (v.kind == ValueKind::kPerRank) {
            wrong = fmt::format("{}: it is a PerRank in another PerRank", place_of(tree, id));
        } else if (v.kind == ValueKind::kTensor && outside[storage_of(v)]) {
            wrong = fmt::format(
                "{}: this tensor shares memory with one outside of the PerRank, so it would be "
                "saved both for each rank and once for all; give the PerRank a clone()",
                place_of(tree, id));
        }
        return wrong.empty();
    });
    return wrong;
}

void take_per_rank(ValueTree& tree, std::optional<std::uint32_t> rank, std::uint32_t count) {
    if (!has_any(tree)) {
        return;
    }
    std::vector<ValueId> stands_for(tree.values.size());
    std::vector<bool> is_gone(tree.values.size(), false);
    const std::size_t values = tree.values.size();
    for (ValueId id = 0; id < values; ++id) {
        stands_for[id] = id;
        if (tree.at(id).kind != ValueKind::kPerRank) {
            continue;
        }
        const std::vector<ValueId> all = tree.at(id).items;
        const auto of = [&](std::uint32_t one) {
            for (std::size_t i = 0; i < all.size(); i += 2) {
                if (tree.at(all[i]).integer == one) {
                    return all[i + 1];
                }
            }
            return kNoValue;
        };
        Value left;  // None
        if (rank) {
            const ValueId own = of(*rank);
            is_gone[id] = own == kNoValue;
            stands_for[id] = is_gone[id] ? id : own;
        } else {
            left.kind = ValueKind::kList;
            for (std::uint32_t one = 0; one < count; ++one) {
                const ValueId own = of(one);
                left.items.push_back(own == kNoValue ? tree.add({}) : own);
            }
        }
        tree.values[id] = std::move(left);
    }
    for (Value& v : tree.values) {
        const bool dict = format::is_dict(v.kind);
        std::vector<ValueId> items;
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            const bool drops = dict && v.items[i | 1U] < values && is_gone[v.items[i | 1U]];
            if (!drops) {
                items.push_back(v.items[i] < values ? stands_for[v.items[i]] : v.items[i]);
            }
        }
        v.items = std::move(items);
    }
    tree.root = stands_for[tree.root];
}

std::optional<std::string> place_of_per_rank(const ValueTree& tree) {
    std::optional<std::string> place;
    walk(tree, {tree.root}, [&](ValueId id) {
        if (tree.at(id).kind == ValueKind::kPerRank && !place) {
            place = place_of(tree, id);
        }
        return !place;
    });
    return place;
}

}  // namespace penstock::state
