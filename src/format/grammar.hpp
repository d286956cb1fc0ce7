// SPDX-License-Identifier: Apache-2.0
// The values that a state may hold: one table and one function for every form, written or read. A
// reader returns exactly the values that a writer accepts, because both use it. docs/formats.md
// describes it for people.
#pragma once

#include "format/value.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::format {

/// The meaning of the items of a value.
enum class Holds : std::uint8_t { kNothing, kItems, kKeys, kEntries, kIntegers };

struct KindRow {
    ValueKind kind;
    std::string_view tag;  ///< in a store's structure; empty: JSON's own
    Holds holds;
    /// Two places that share it see each other's changes, so that sharing must be restored; values
    /// that cannot change may be copied.
    bool changes;
};

inline constexpr std::array<KindRow, 27> kKinds{{
    {ValueKind::kNone, "", Holds::kNothing, false},
    {ValueKind::kBool, "", Holds::kNothing, false},
    {ValueKind::kInt, "", Holds::kNothing, false},
    {ValueKind::kBigInt, "int", Holds::kNothing, false},
    {ValueKind::kFloat, "float", Holds::kNothing, false},
    {ValueKind::kComplex, "complex", Holds::kNothing, false},
    {ValueKind::kString, "", Holds::kNothing, false},
    {ValueKind::kBytes, "bytes", Holds::kNothing, false},
    {ValueKind::kByteArray, "bytearray", Holds::kNothing, true},
    {ValueKind::kList, "list", Holds::kItems, true},
    {ValueKind::kTuple, "tuple", Holds::kItems, false},
    {ValueKind::kSet, "set", Holds::kKeys, true},
    {ValueKind::kFrozenSet, "frozenset", Holds::kKeys, false},
    {ValueKind::kDict, "dict", Holds::kEntries, true},
    {ValueKind::kOrderedDict, "OrderedDict", Holds::kEntries, true},
    {ValueKind::kDefaultDict, "defaultdict", Holds::kEntries, true},
    {ValueKind::kCounter, "Counter", Holds::kEntries, true},
    {ValueKind::kSize, "Size", Holds::kIntegers, false},
    {ValueKind::kDtype, "dtype", Holds::kNothing, false},
    {ValueKind::kDevice, "device", Holds::kNothing, false},
    {ValueKind::kTensor, "tensor", Holds::kNothing, true},
    {ValueKind::kNumpyScalar, "numpy", Holds::kNothing, false},
    {ValueKind::kNumpyArray, "ndarray", Holds::kIntegers, true},
    {ValueKind::kPickled, "pickled", Holds::kNothing, true},
    {ValueKind::kRebuilt, "rebuilt", Holds::kItems, true},
    {ValueKind::kUnread, "unread", Holds::kEntries, true},
    {ValueKind::kPerRank, "per_rank", Holds::kEntries, true},
}};

/// Not for kinds that occur only in a pickle (kGlobal and later).
[[nodiscard]] constexpr const KindRow& row_of(ValueKind kind) {
    return kKinds[static_cast<std::size_t>(kind)];
}

[[nodiscard]] constexpr bool is_of_state(ValueKind kind) {
    return kind < ValueKind::kGlobal;
}

[[nodiscard]] constexpr bool is_dict(ValueKind kind) {
    return is_of_state(kind) && row_of(kind).holds == Holds::kEntries;
}

constexpr bool kinds_are_in_order() {
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
        if (kKinds[i].kind != static_cast<ValueKind>(i)) {
            return false;
        }
    }
    return kKinds.size() == static_cast<std::size_t>(ValueKind::kGlobal);
}
static_assert(kinds_are_in_order());

/// A callable that a defaultdict may use for a missing key, and its module.
struct Factory {
    std::string_view name;
    std::string_view module;
};
inline constexpr std::array<Factory, 14> kFactories{{
    {"list", "builtins"},
    {"dict", "builtins"},
    {"int", "builtins"},
    {"float", "builtins"},
    {"complex", "builtins"},
    {"str", "builtins"},
    {"bytes", "builtins"},
    {"bytearray", "builtins"},
    {"bool", "builtins"},
    {"tuple", "builtins"},
    {"set", "builtins"},
    {"frozenset", "builtins"},
    {"OrderedDict", "collections"},
    {"Counter", "collections"},
}};
/// nullptr if it is not allowed.
[[nodiscard]] const Factory* factory_named(std::string_view name);

inline constexpr std::size_t kBigIntBytesMax = 64 << 10;
/// Deepest nesting that is written or made into objects.
inline constexpr int kNestingMax = 500;
/// Limit on the hashed elements of a key that is a tuple, nested tuples included. (Tuples of tuples
/// that are one and the same tuple would make a hash take forever.)
inline constexpr int kKeyElementsMax = 64;

/// Whether it may be a key of a dict or an element of a set.
[[nodiscard]] bool may_be_key(const ValueTree& tree, ValueId id);

/// Empty, or the reason why the value may not be in a state. Its items are in the tree, and checked
/// by their own calls. The caller checks the nesting: more than kNestingMax is too deep.
[[nodiscard]] std::string wrong_with(const ValueTree& tree, const Value& value);

}  // namespace penstock::format
