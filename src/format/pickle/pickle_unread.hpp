// SPDX-License-Identifier: Apache-2.0
// Place-holders of a pickle: what stands in the tree for an object that may not be built (kUnread
// of value.hpp). It has a name, the reason, and as items what the pickle gives the object:
//
//   __args__, __kwargs__   what it is called with
//   the keys of a dict     of its attributes (BUILD), or of its entries (SETITEMS)
//   0, 1, ...              what is appended or added to it
//   __state__              a state that is no dict
//   data                   the value that it was, or would be but for its type
//
// Nothing of it is called, and it holds no function: a name is text.
#pragma once

#include "format/grammar.hpp"
#include "format/value.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::format {

class PlaceHolders {
public:
    /// `pickle_bytes`: the size of the pickle. No more values than that are copied into
    /// place-holders; the states past it are held whole.
    PlaceHolders(ValueTree& tree, std::uint64_t pickle_bytes)
        : tree_(tree), copies_left_(pickle_bytes) {}

    /// `content`: a value that it holds under "data", or kNoValue.
    [[nodiscard]] ValueId make(std::string_view name, std::string why, ValueId content = kNoValue);
    /// A function that is not known, or one that is given a place-holder, is called.
    [[nodiscard]] ValueId object_of(ValueId function, ValueId arguments);
    /// Gives it the name of the function, and what the call was made with.
    void hold_call(ValueId object, ValueId function, ValueId arguments);
    void hold(ValueId object, std::string_view key, ValueId value);
    /// obj.__setstate__(state), or what does the same.
    void build(ValueId object, ValueId state);
    /// Items are appended, or entries set.
    void extend(ValueId object, const std::vector<ValueId>& items, Holds holds);
    /// Makes a place-holder of a value that is in the tree, with what that holds.
    void become(ValueId id, std::string why);
    /// The same, without what it holds.
    void become_empty(ValueId id, std::string why);
    /// Gives the entries of a dict whose keys cannot be keys others: the name of the key, and as
    /// value a place-holder, which has "key" and "value".
    void settle_keys(ValueId dict);

    [[nodiscard]] bool is_unread(ValueId id) const {
        return tree_.at(id).kind == ValueKind::kUnread;
    }
    /// Finds the first place-holder in a tuple, or the one that stands for the tuple; or kNoValue.
    [[nodiscard]] ValueId first_in(ValueId tuple) const;
    /// The name of a function, class, or of the type of a value.
    [[nodiscard]] std::string name_of(ValueId id) const;

private:
    [[nodiscard]] ValueId key(std::string_view text);
    [[nodiscard]] ValueId index(std::size_t number);
    void add(ValueId object, ValueId key, ValueId value);
    [[nodiscard]] bool add_entries(ValueId object, ValueId dict);
    [[nodiscard]] bool hold_base(ValueId object, ValueId function, ValueId arguments);

    ValueTree& tree_;
    std::uint64_t copies_left_;
    std::unordered_map<std::string_view, ValueId> keys_;  // of literals
    std::vector<ValueId> indexes_;
};

/// "my.module.Class", escaped and of limited length: it is a file's.
[[nodiscard]] std::string unread_name(std::string_view module, std::string_view name);

/// Visits each value of a finished tree once, and makes place-holders of those that a state may not
/// hold. `thrown_away`: values that codes took from the stack. An error: bytes that contradict one
/// another, or a place-holder that was thrown away, which a reader that calls what it reads would
/// have called.
[[nodiscard]] Result<void> settle(ValueTree& tree, PlaceHolders& holders,
                                  std::span<const ValueId> thrown_away);

}  // namespace penstock::format
