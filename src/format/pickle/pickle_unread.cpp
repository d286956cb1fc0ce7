// SPDX-License-Identifier: Apache-2.0
#include "format/pickle/pickle_unread.hpp"

#include "format/fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace penstock::format {

namespace {

constexpr std::string_view kSettling = "read .pt";
constexpr std::size_t kNameBytesMax = 512;

// Whether the function makes an object of a class that it is given.
bool is_helper(std::string_view name) {
    return name.starts_with("copyreg.") || name.starts_with("copy_reg.") ||
           ((name.starts_with("torch.") || name.starts_with("numpy.")) &&
            name.substr(name.rfind('.') + 1).starts_with('_'));
}

bool is_getattr(std::string_view name) {
    return name == "builtins.getattr" || name == "__builtin__.getattr";
}

bool is_row(const Value& v) {
    return v.kind == ValueKind::kSize ||
           (is_of_state(v.kind) &&
            (row_of(v.kind).holds == Holds::kItems || row_of(v.kind).holds == Holds::kKeys));
}

class Settling {
public:
    Settling(ValueTree& tree, PlaceHolders& holders) : tree_(tree), holders_(holders) {}

    Result<void> run(std::span<const ValueId> thrown_away) {
        if (!visit(tree_.root, 0)) {
            return fault(kSettling, path_.text(tree_) + ": " + wrong_);
        }
        for (ValueId id = 0; id < tree_.values.size(); ++id) {
            if (holders_.is_unread(id) && tree_.at(id).flag) {
                return fault(kSettling,
                             "next to the state, which does not hold it: " + tree_.at(id).data);
            }
        }
        for (const ValueId id : thrown_away) {
            if (holders_.is_unread(id) && !is_seen(id)) {
                return unsupported(
                    kSettling, "next to the state, which does not hold it: " + tree_.at(id).data);
            }
        }
        return {};
    }

private:
    [[nodiscard]] bool is_seen(ValueId id) const { return id < seen_.size() && seen_[id]; }

    bool visit(ValueId id, int depth) {
        if (is_seen(id)) {
            return true;
        }
        seen_.resize(std::max<std::size_t>(seen_.size(), tree_.values.size()), false);
        seen_[id] = true;
        settle_value(id, depth);
        if (holders_.is_unread(id) && tree_.at(id).flag) {
            wrong_ = tree_.at(id).data;
            return false;
        }
        return items(id, depth) && attributes(id, depth);
    }

    void settle_value(ValueId id, int depth) {
        const bool holds = !tree_.at(id).items.empty() || tree_.at(id).attributes != kNoValue;
        if (holds && depth >= kNestingMax) {
            holders_.become_empty(id,
                                  fmt::format("it is nested deeper than {} levels", kNestingMax));
        }
        if (is_dict(tree_.at(id).kind)) {
            holders_.settle_keys(id);
        }
        const Value& v = tree_.at(id);
        std::string wrong = v.kind == ValueKind::kNumpyArray && v.text.empty()
                                ? "it is a NumPy array without a state"
                                : wrong_with(tree_, v);
        if (!wrong.empty()) {
            holders_.become(id, std::move(wrong));
        }
        if (holders_.is_unread(id)) {
            tree_.values[id].integer = 0;  // of what was appended to it
        }
    }

    // A place-holder that becomes of one of them may make the list longer.
    bool items(ValueId id, int depth) {
        const bool dict = is_dict(tree_.at(id).kind);
        for (std::size_t i = 0; i < tree_.at(id).items.size(); ++i) {
            const std::vector<ValueId>& all = tree_.at(id).items;
            dict ? path_.enter_key(all[i - i % 2]) : path_.enter_index(i);
            if (!visit(all[i], depth + 1)) {
                return false;
            }
            path_.leave();
        }
        return true;
    }

    bool attributes(ValueId id, int depth) {
        if (tree_.at(id).attributes == kNoValue) {
            return true;
        }
        path_.enter_attributes();
        if (!visit(tree_.at(id).attributes, depth + 1)) {
            return false;
        }
        path_.leave();
        return true;
    }

    ValueTree& tree_;
    PlaceHolders& holders_;
    std::vector<bool> seen_;
    ValuePath path_;  // of the value being visited
    std::string wrong_;
};

}  // namespace

std::string unread_name(std::string_view module, std::string_view name) {
    std::string out = escaped(module.substr(0, kNameBytesMax));
    out += out.empty() ? "" : ".";
    out += escaped(name.substr(0, kNameBytesMax));
    if (module.size() > kNameBytesMax || name.size() > kNameBytesMax) {
        out += "...";
    }
    return out;
}

ValueId PlaceHolders::make(std::string_view name, std::string why, ValueId content) {
    Value value;
    value.kind = ValueKind::kUnread;
    value.text = name;
    value.data = std::move(why);
    const ValueId id = tree_.add(std::move(value));
    if (content != kNoValue) {
        hold(id, "data", content);
    }
    return id;
}

ValueId PlaceHolders::object_of(ValueId function, ValueId arguments) {
    const ValueId reason = is_unread(function) ? function : first_in(arguments);
    const ValueId id = make({}, tree_.at(reason).data);
    tree_.values[id].flag = tree_.at(reason).flag;
    return id;
}

void PlaceHolders::hold_call(ValueId object, ValueId function, ValueId arguments) {
    std::string name = name_of(function);
    if (const ValueId first = first_in(arguments); first != kNoValue) {
        const std::vector<ValueId>& items = tree_.at(arguments).items;
        if (is_helper(name)) {
            name = name_of(first);
        } else if (is_getattr(name) && items.size() == 2 && items[0] == first &&
                   tree_.at(items[1]).kind == ValueKind::kString) {  // an Enum, a method
            name = unread_name(name_of(first), tree_.at(items[1]).text);
        }
    }
    tree_.values[object].text = std::move(name);
    if (!hold_base(object, function, arguments) && !tree_.at(arguments).items.empty()) {
        hold(object, "__args__", arguments);
    }
}

// copyreg._reconstructor(class, base, value), of protocols 0 and 1: a dict or list of its own.
bool PlaceHolders::hold_base(ValueId object, ValueId function, ValueId arguments) {
    const std::vector<ValueId> items = tree_.at(arguments).items;
    if (!is_unread(function) || !tree_.at(function).text.ends_with("._reconstructor") ||
        items.size() != 3) {
        return false;
    }
    const Value& value = tree_.at(items[2]);
    if (is_row(value) && value.items.size() <= copies_left_) {
        copies_left_ -= value.items.size();
        extend(object, std::vector<ValueId>(value.items), Holds::kItems);
        return true;
    }
    return value.kind == ValueKind::kNone || (is_dict(value.kind) && add_entries(object, items[2]));
}

void PlaceHolders::hold(ValueId object, std::string_view text, ValueId value) {
    add(object, key(text), value);
}

void PlaceHolders::build(ValueId object, ValueId state) {
    const Value& v = tree_.at(state);
    // A class with __slots__ has (attributes or None, slots).
    const auto attributes = [this](ValueId id) {
        return tree_.at(id).kind == ValueKind::kDict || tree_.at(id).kind == ValueKind::kNone;
    };
    const bool two = v.kind == ValueKind::kTuple && v.items.size() == 2 &&
                     std::all_of(v.items.begin(), v.items.end(), attributes);
    const std::vector<ValueId> dicts = two                          ? v.items
                                       : v.kind == ValueKind::kDict ? std::vector{state}
                                                                    : std::vector<ValueId>();
    for (const ValueId dict : dicts) {
        if (!add_entries(object, dict)) {
            hold(object, "__state__", dict);
        }
    }
    if (dicts.empty()) {
        hold(object, "__state__", state);
    }
}

bool PlaceHolders::add_entries(ValueId object, ValueId dict) {
    if (tree_.at(dict).items.size() > copies_left_) {
        return false;
    }
    copies_left_ -= tree_.at(dict).items.size();
    const std::vector<ValueId> entries = tree_.at(dict).items;
    std::vector<ValueId>& own = tree_.values[object].items;
    own.insert(own.end(), entries.begin(), entries.end());
    return true;
}

void PlaceHolders::extend(ValueId object, const std::vector<ValueId>& items, Holds holds) {
    if (holds == Holds::kEntries) {
        std::vector<ValueId>& own = tree_.values[object].items;
        own.insert(own.end(), items.begin(), items.end());
        return;
    }
    for (const ValueId item : items) {
        const auto number = static_cast<std::size_t>(tree_.values[object].integer++);
        add(object, index(number), item);
    }
}

void PlaceHolders::become(ValueId id, std::string why) {
    const std::string name = name_of(id);
    Value old = std::move(tree_.values[id]);
    Value& made = tree_.values[id] = Value();
    made.kind = ValueKind::kUnread;
    made.text = name;
    made.data = std::move(why);
    if (is_dict(old.kind)) {
        made.items = std::move(old.items);
    } else if (is_row(old)) {
        extend(id, old.items, Holds::kItems);
    } else if (old.kind == ValueKind::kTensor) {
        hold(id, "data", tree_.add(old));
    }
    if (old.attributes != kNoValue) {
        hold(id, "__dict__", old.attributes);
    }
}

void PlaceHolders::become_empty(ValueId id, std::string why) {
    const std::string name = name_of(id);
    tree_.values[id] = Value();
    tree_.values[id].kind = ValueKind::kUnread;
    tree_.values[id].text = name;
    tree_.values[id].data = std::move(why);
}

void PlaceHolders::settle_keys(ValueId dict) {
    std::unordered_set<std::string> taken;  // filled at the first key that is none
    std::unordered_map<std::string, std::uint64_t> times;
    for (std::size_t i = 0; i + 1 < tree_.at(dict).items.size(); i += 2) {
        const ValueId bad = tree_.at(dict).items[i];
        if (may_be_key(tree_, bad)) {
            continue;
        }
        if (taken.empty()) {
            taken.emplace();
            for (std::size_t k = 0; k < tree_.at(dict).items.size(); k += 2) {
                const Value& other = tree_.at(tree_.at(dict).items[k]);
                if (other.kind == ValueKind::kString) {
                    taken.insert(other.text);
                }
            }
        }
        const ValueId inside = first_in(bad);
        const std::string name = name_of(inside == kNoValue ? bad : inside);
        std::string text;
        do {
            const std::uint64_t time = ++times[name];
            text = time == 1 ? fmt::format("({})", name) : fmt::format("({})~{}", name, time);
        } while (!taken.insert(text).second);
        const ValueId entry = make(
            name, inside == kNoValue ? "its key is not a string, a number, or a short tuple of such"
                                     : "its key is not read: " + tree_.at(inside).data);
        hold(entry, "key", bad);
        hold(entry, "value", tree_.at(dict).items[i + 1]);
        Value made;
        made.kind = ValueKind::kString;
        made.text = std::move(text);
        const ValueId key = tree_.add(std::move(made));
        tree_.values[dict].items[i] = key;
        tree_.values[dict].items[i + 1] = entry;
    }
}

ValueId PlaceHolders::first_in(ValueId tuple) const {
    const Value& v = tree_.at(tuple);
    if (v.kind == ValueKind::kUnread) {
        return tuple;
    }
    const auto found = v.kind == ValueKind::kTuple
                           ? std::find_if(v.items.begin(), v.items.end(),
                                          [this](ValueId item) { return is_unread(item); })
                           : v.items.end();
    return found == v.items.end() ? kNoValue : *found;
}

std::string PlaceHolders::name_of(ValueId id) const {
    const Value& v = tree_.at(id);
    switch (v.kind) {
        case ValueKind::kUnread:
            return v.text;
        case ValueKind::kGlobal:
            return unread_name(v.data, v.text);
        case ValueKind::kStorage:
            return "torch.UntypedStorage";
        case ValueKind::kNumpyDtype:
            return "numpy.dtype";
        case ValueKind::kNumpyArray:
            return "numpy.ndarray";
        case ValueKind::kTensor:
            return "torch.Tensor";
        case ValueKind::kString:
            return "str";
        default:
            return is_of_state(v.kind) ? std::string(row_of(v.kind).tag) : std::string();
    }
}

ValueId PlaceHolders::key(std::string_view text) {
    const auto [known, fresh] = keys_.try_emplace(text, kNoValue);
    if (fresh) {
        Value value;
        value.kind = ValueKind::kString;
        value.text = text;
        known->second = tree_.add(std::move(value));
    }
    return known->second;
}

ValueId PlaceHolders::index(std::size_t number) {
    while (indexes_.size() <= number) {
        Value value;
        value.kind = ValueKind::kInt;
        value.integer = static_cast<std::int64_t>(indexes_.size());
        indexes_.push_back(tree_.add(std::move(value)));
    }
    return indexes_[number];
}

void PlaceHolders::add(ValueId object, ValueId key, ValueId value) {
    std::vector<ValueId>& items = tree_.values[object].items;
    items.push_back(key);
    items.push_back(value);
}

Result<void> settle(ValueTree& tree, PlaceHolders& holders, std::span<const ValueId> thrown_away) {
    return Settling(tree, holders).run(thrown_away);
}

}  // namespace penstock::format
