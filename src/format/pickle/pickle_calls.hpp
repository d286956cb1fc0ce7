// SPDX-License-Identifier: Apache-2.0
// The names that a pickle may use, and the values that "calling" them builds. Any other name, or
// other arguments than expected, becomes a place-holder (kUnread), of which pickle_unread.hpp keeps
// what it was made with.
#pragma once

#include "format/value.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock::format {

[[nodiscard]] inline Value make_value(ValueKind kind, std::string text = {}) {
    Value value;
    value.kind = kind;
    value.text = std::move(text);
    return value;
}

class PickleCalls {
public:
    /// `pickle_bytes`: the size of the pickle. Copies from one value into another (bytes, and items
    /// of a set) are limited to twice that in all: a value of the pickle becomes bytes once, and
    /// these an array, and the memo may not multiply it.
    PickleCalls(ValueTree& tree, std::uint64_t pickle_bytes)
        : tree_(tree), copies_left_(2 * pickle_bytes) {}

    /// The value of a name.
    [[nodiscard]] ValueId global(std::string_view module, std::string_view name);
    /// `arguments` is a tuple without place-holders.
    [[nodiscard]] ValueId call(ValueId function, ValueId arguments);
    /// obj.__setstate__(state), or its equivalent for the few objects that have one. False: the
    /// object takes no state, or not this one.
    [[nodiscard]] bool build(ValueId object, ValueId state);
    /// ("storage", class, key, location, numel)
    [[nodiscard]] ValueId persistent(ValueId id);
    /// A place-holder: the value is not read.
    [[nodiscard]] ValueId refused(std::string why);
    /// A value whose bytes contradict themselves: the file is damaged.
    [[nodiscard]] ValueId damaged(std::string why);
    /// Makes values of what a state may hold and only arguments were so far: storages, classes of
    /// tensors.
    void finish(ValueId root);

private:
    using Items = std::vector<ValueId>;
    static constexpr const char* kTooMany = "more bytes would be made of it than the file has";
    [[nodiscard]] ValueId collection(ValueKind kind, const Items& items);
    [[nodiscard]] ValueId default_dict(const Items& items);
    [[nodiscard]] ValueId counter(const Items& items);
    [[nodiscard]] ValueId encode(const Items& items);
    [[nodiscard]] ValueId held(ValueKind kind, const Items& items);
    [[nodiscard]] ValueId complex(const Items& items);
    [[nodiscard]] ValueId ordered_dict(const Items& items);
    [[nodiscard]] ValueId bytearray_of(ValueId bytes);
    [[nodiscard]] ValueId size(const Items& items);
    [[nodiscard]] ValueId device(const Items& items);
    // Makes what torch's own functions make; this and what it calls are in pickle_torch.cpp.
    [[nodiscard]] std::optional<ValueId> torch_call(std::int64_t which, const Items& items);
    [[nodiscard]] ValueId tensor(const Items& items, bool v3);
    [[nodiscard]] ValueId tensor_v1(const Items& items);
    [[nodiscard]] ValueId new_tensor(TensorValue tensor);
    [[nodiscard]] bool tensor_flags(ValueId id, TensorValue& tensor) const;
    [[nodiscard]] bool no_hooks(ValueId id) const;
    [[nodiscard]] ValueId parameter(const Items& items, bool with_state);
    [[nodiscard]] ValueId tensor_with_state(const Items& items);
    [[nodiscard]] ValueId with_attributes(ValueId made, ValueId state);
    [[nodiscard]] ValueId layout(const Items& items);
    [[nodiscard]] ValueId rebuilt(std::string_view tag, Items parts);
    [[nodiscard]] ValueId jagged(const Items& items);
    [[nodiscard]] ValueId jagged_with_state(ValueId arguments, ValueId state, bool by_class);
    [[nodiscard]] bool holds_unread(ValueId id) const;
    [[nodiscard]] ValueId entry(ValueId dict, std::string_view key) const;
    [[nodiscard]] ValueId sparse(const Items& items);
    [[nodiscard]] ValueId quantized(const Items& items);
    [[nodiscard]] ValueId from_cpu(const Items& items);
    [[nodiscard]] ValueId whole_storage(const Value& storage);
    [[nodiscard]] bool build_tensor(ValueId id, const Value& state);
    [[nodiscard]] ValueId numpy_dtype(const Items& items);
    [[nodiscard]] ValueId numpy_scalar(const Items& items);
    [[nodiscard]] static Value refusal(std::string why);
    void build_numpy_dtype(Value& dtype, const Value& state);
    void build_numpy_array(ValueId id, const Value& state);
    [[nodiscard]] ValueId numpy_from_buffer(const Items& items);
    [[nodiscard]] std::string fill_numpy_array(Value& array, ValueId shape, ValueId dtype,
                                               ValueId bytes);
    [[nodiscard]] bool turn_axes(Value& array, ValueId order) const;
    [[nodiscard]] bool may_copy(std::uint64_t amount);
    [[nodiscard]] bool is(ValueId id, ValueKind kind) const { return tree_.at(id).kind == kind; }
    [[nodiscard]] bool sizes(ValueId id, std::vector<std::uint64_t>& out) const;

    ValueTree& tree_;
    [[nodiscard]] static std::string not_read(std::string_view module, std::string_view name);

    std::uint64_t copies_left_;
    std::unordered_map<std::string, std::int64_t> storages_;  // by key
    std::vector<std::int64_t> storage_classes_;               // one per storage
};

}  // namespace penstock::format
