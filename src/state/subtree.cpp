// SPDX-License-Identifier: Apache-2.0
#include "state/subtree.hpp"

#include "format/fault.hpp"
#include "format/grammar.hpp"
#include "format/rebuilt.hpp"
#include "format/torch_types.hpp"
#include "state/selection.hpp"
#include "state/state_views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace penstock::state {

namespace {

using format::kNoValue;
using format::Value;
using format::ValueId;
using format::ValueKind;
using format::ValueTree;
using tensor::ElementType;

bool is_row(ValueKind kind) {
    return kind == ValueKind::kList || kind == ValueKind::kTuple;
}

// The values of names. Keys of a value are read once, when the first name leads there, so that
// thousands of names take no longer than the tree is large.
class NamedValues {
public:
    explicit NamedValues(const ValueTree& tree) : tree_(tree) {}

    std::vector<ValueId> operator()(std::string_view name) {
        std::vector<ValueId> out;
        add(tree_.root, name, out);
        return out;
    }

    // Nothing, or the one value of that name that is no tensor.
    std::optional<ValueId> part(std::string_view name) {
        const std::vector<ValueId> found = (*this)(name);
        if (std::all_of(found.begin(), found.end(), [&](ValueId id) { return is_tensor(id); })) {
            return std::nullopt;
        }
        return only(name, found);
    }

    // kInvalidArgument for a name that has several values.
    [[nodiscard]] ValueId only(std::string_view name, const std::vector<ValueId>& found) const {
        if (found.size() > 1) {
            throw Error(
                ErrorCode::kInvalidArgument, 0, "load", "", kNoOffset,
                fmt::format("load: names: the state has {} values of the name {} ({}, {}); load "
                            "the whole state, and take them out of it",
                            found.size(), format::shown(name), place_of(tree_, found[0]),
                            place_of(tree_, found[1])));
        }
        return found[0];
    }

private:
    // Tensors with attributes, and parts of a sparse tensor, for example, are parts of the state,
    // and loaded as these are.
    [[nodiscard]] bool is_tensor(ValueId id) const {
        const Value& v = tree_.at(id);
        return v.kind == ValueKind::kTensor && v.attributes == kNoValue && inner_.count(id) == 0;
    }

    using Items = std::unordered_map<std::string, std::vector<ValueId>>;

    // A key may have dots of its own: each beginning of the name that ends at one may be a key.
    void add(ValueId id, std::string_view name, std::vector<ValueId>& out) {
        const Items& items = items_of(id);
        if (items.empty()) {
            return;
        }
        for (std::size_t end = 0; end <= name.size(); ++end) {
            end = std::min(name.find('.', end), name.size());
            const auto found = items.find(std::string(name.substr(0, end)));
            if (found == items.end()) {
                continue;
            }
            for (const ValueId item : found->second) {
                if (end < name.size()) {  // a step takes a character at least
                    add(item, name.substr(end + 1), out);
                } else if (std::find(out.begin(), out.end(), item) == out.end()) {
                    out.push_back(item);
                }
            }
        }
    }

    const Items& items_of(ValueId id) {
        const auto [known, added] = items_.try_emplace(id);
        const Value& v = tree_.at(id);
        const bool dict = format::is_dict(v.kind);
        const std::size_t step = dict ? 2 : 1;
        const format::RebuiltRow* made =
            v.kind == ValueKind::kRebuilt ? format::rebuilt_tagged(v.text) : nullptr;
        if (added && (dict || is_row(v.kind) || made != nullptr)) {
            for (std::size_t i = 0; i + step <= v.items.size(); i += step) {
                const std::string key = dict              ? key_text(tree_.at(v.items[i]))
                                        : made != nullptr ? std::string(made->parts[i].name)
                                                          : fmt::to_string(i);
                known->second[key].push_back(v.items[i + step - 1]);
                if (made != nullptr) {
                    inner_.insert(v.items[i]);
                }
            }
        }
        return known->second;
    }

    const ValueTree& tree_;
    std::unordered_map<ValueId, Items> items_;
    std::set<ValueId> inner_;
};

class Copy {
public:
    explicit Copy(const ValueTree& tree)
        : tree_(tree), values_(tree.values.size(), kNoValue), tensors_(tree.tensors.size()) {}

    Subtree run(ValueId root) {
        out_.tree.root = value(root);
        for (std::size_t i = 0; i < copied_.size(); ++i) {
            fill(copied_[i]);
        }
        return std::move(out_);
    }

private:
    ValueId value(ValueId id) {
        if (values_[id] == kNoValue) {
            values_[id] = out_.tree.add(tree_.at(id));
            copied_.push_back(values_[id]);
        }
        return values_[id];
    }

    void fill(ValueId id) {
        std::vector<ValueId> items = std::move(out_.tree.values[id].items);
        for (ValueId& item : items) {
            item = value(item);
        }
        ValueId attributes = out_.tree.values[id].attributes;
        attributes = attributes == kNoValue ? attributes : value(attributes);
        Value& v = out_.tree.values[id];
        v.items = std::move(items);
        v.attributes = attributes;
        if (v.kind == ValueKind::kTensor) {
            v.integer = tensor(static_cast<std::size_t>(v.integer));
        }
    }

    std::int64_t tensor(std::size_t number) {
        if (!tensors_[number]) {
            tensors_[number] = static_cast<std::int64_t>(out_.tree.tensors.size());
            format::TensorValue copy = tree_.tensors[number];
            const auto [known, added] = storages_.try_emplace(
                copy.storage, static_cast<std::uint32_t>(out_.storages.size()));
            if (added) {
                out_.storages.push_back(copy.storage);
                out_.tree.storages.push_back(tree_.storages[copy.storage]);
            }
            copy.storage = known->second;
            out_.tree.tensors.push_back(std::move(copy));
        }
        return *tensors_[number];
    }

    const ValueTree& tree_;
    std::vector<ValueId> values_;  // the number of each in the copy
    std::vector<std::optional<std::int64_t>> tensors_;
    std::unordered_map<std::uint32_t, std::uint32_t> storages_;
    std::vector<ValueId> copied_;
    Subtree out_;
};

// A dict of parts of a state, as a tree of its own.
class Parts {
public:
    explicit Parts(const ValueTree& tree) : all_(tree), named_(tree) {
        for (const StateView& view : views_of(tree)) {
            names_.push_back(view.name);
        }
        root_.kind = ValueKind::kDict;
    }

    base::Result<Subtree> run(std::span<const std::string_view> wanted) {
        const std::vector<std::string_view> names(names_.begin(), names_.end());
        for (const std::string_view one : wanted) {
            const std::vector<ValueId> found = named_(one);
            if (named_.part(one) || (!found.empty() && !is_pattern(one))) {
                add(one, named_.only(one, found));
                continue;
            }
            auto selected = select(names, {&one, 1});
            if (!selected) {
                return base::fail(selected.error());
            }
            for (const Selected& tensor : *selected) {
                add(names[tensor.tensor], named_(names[tensor.tensor]).at(0));
            }
        }
        return finish();
    }

    // The tensors below a name, without it; nothing if there are none.
    std::optional<Subtree> below(std::string_view name) {
        for (const std::string& tensor : names_) {
            if (is_below(tensor, name)) {
                add(std::string_view(tensor).substr(name.size() + 1), named_(tensor).at(0));
            }
        }
        return added_.empty() ? std::nullopt : std::optional(finish());
    }

private:
    void add(std::string_view name, ValueId id) {
        if (!added_.emplace(name).second) {
            return;
        }
        Value key;
        key.kind = ValueKind::kString;
        key.text = name;
        root_.items.push_back(all_.add(std::move(key)));
        root_.items.push_back(id);
    }
    Subtree finish() { return subtree_of(all_, all_.add(std::move(root_))); }

    ValueTree all_;
    NamedValues named_;
    Value root_;
    std::vector<std::string> names_;
    std::set<std::string, std::less<>> added_;
};

}  // namespace

Subtree subtree_of(const ValueTree& tree, ValueId root) {
    return Copy(tree).run(root);
}

base::Result<Subtree> dict_of_parts(const ValueTree& tree,
                                    std::span<const std::string_view> wanted) {
    return Parts(tree).run(wanted);
}

base::Result<std::optional<Subtree>> named_parts(const ValueTree& tree,
                                                 std::span<const std::string_view> wanted,
                                                 bool one) {
    NamedValues named(tree);
    const bool any = std::any_of(wanted.begin(), wanted.end(), [&](std::string_view name) {
        return named.part(name).has_value();
    });
    if (one && any) {
        const ValueId root = *named.part(wanted[0]);
        Subtree part = subtree_of(tree, root);
        part.tree.place = format::place_of(tree, root);
        return part;
    }
    if (one) {
        const bool tensors = is_pattern(wanted[0]) || !named(wanted[0]).empty();
        return tensors ? std::nullopt : Parts(tree).below(wanted[0]);
    }
    if (!any) {
        return std::nullopt;
    }
    auto parts = Parts(tree).run(wanted);
    if (!parts) {
        return base::fail(parts.error());
    }
    return std::move(*parts);
}

bool is_converted(ElementType type) {
    return type == ElementType::kF64 || type == ElementType::kF32 || type == ElementType::kF16 ||
           type == ElementType::kBF16;
}

std::vector<std::optional<ElementType>> set_types(ValueTree& tree, ElementType to) {
    std::vector<std::optional<ElementType>> out(tree.storages.size());
    std::vector<bool> mixed(tree.storages.size(), false);
    for (const format::TensorValue& t : tree.tensors) {
        mixed[t.storage] = mixed[t.storage] || (out[t.storage] && *out[t.storage] != t.type);
        out[t.storage] = t.type;
    }
    for (const Value& v : tree.values) {
        // The scales of a quantized tensor are a part of its values.
        for (std::size_t i = 0; v.kind == ValueKind::kRebuilt && i < v.items.size(); ++i) {
            const Value& part = tree.at(v.items[i]);
            if (v.text == "quantized" && part.kind == ValueKind::kTensor) {
                mixed[tree.tensors[static_cast<std::size_t>(part.integer)].storage] = true;
            }
        }
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (mixed[i] || !out[i] || !is_converted(*out[i]) || *out[i] == to) {
            out[i] = std::nullopt;
        }
    }
    for (format::TensorValue& t : tree.tensors) {
        t.type = out[t.storage] ? to : t.type;
    }
    return out;
}

}  // namespace penstock::state
