// SPDX-License-Identifier: Apache-2.0
// What a training state is made of, free of Python: the values that a .pt holds, numbered, so that
// one that stands in two places is one value, and a tree of any depth is freed without recursion.
#pragma once

#include "format/fault.hpp"
#include "tensor/element_type.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::format {

using ValueId = std::uint32_t;
inline constexpr ValueId kNoValue = 0xFFFFFFFF;

enum class ValueKind : std::uint8_t {
    kNone,
    kBool,         ///< flag
    kInt,          ///< integer
    kBigInt,       ///< text: two's complement, little-endian, what does not fit into 64 bits
    kFloat,        ///< real
    kComplex,      ///< real, imaginary
    kString,       ///< text, UTF-8
    kBytes,        ///< text
    kByteArray,    ///< text
    kList,         ///< items
    kTuple,        ///< items
    kSet,          ///< items
    kFrozenSet,    ///< items
    kDict,         ///< items: key, value, key, value
    kOrderedDict,  ///< likewise; attributes: a dict of what stands on the object
    kDefaultDict,  ///< likewise; text: what makes a missing value ("list"), or empty for None
    kCounter,      ///< likewise
    kSize,         ///< torch.Size: items, integers
    kDtype,        ///< text: "float32", as torch names it
    kDevice,       ///< text: "cpu", "cuda:1"
    kTensor,       ///< integer: its number in `tensors`
    kNumpyScalar,  ///< text: "<f8" as NumPy spells it; data
    kNumpyArray,   ///< likewise; flag: Fortran order; items: its shape
    // Below: what only a pickle has between its first byte and its last.
    kGlobal,      ///< integer: which
    kStorage,     ///< integer: its number in `storages`
    kNumpyDtype,  ///< text
    kRefused,     ///< text: why; nothing of it was built
};

struct Value {
    ValueKind kind = ValueKind::kNone;
    bool flag = false;
    ValueId attributes = kNoValue;
    std::int64_t integer = 0;
    double real = 0;
    double imaginary = 0;
    std::string text;
    std::string data;
    std::vector<ValueId> items;
};

/// Memory that tensors look into, one record of the file.
struct StorageValue {
    std::uint64_t bytes = 0;
    std::string location = "cpu";  ///< where it was: "cuda:0"
    std::string key;               ///< its name in a file that was read
};

struct TensorValue {
    std::uint32_t storage = 0;
    tensor::ElementType type = tensor::ElementType::kF32;
    std::uint64_t offset = 0;  ///< elements into the storage
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> strides;  ///< elements
    bool requires_grad = false;
    bool parameter = false;
    bool conjugated = false;  ///< to be read as its complex conjugate
    bool negated = false;     ///< to be read with the sign turned
};

struct ValueTree {
    std::vector<Value> values;
    std::vector<StorageValue> storages;
    std::vector<TensorValue> tensors;
    ValueId root = kNoValue;

    ValueId add(Value value);
    [[nodiscard]] const Value& at(ValueId id) const { return values[id]; }
};

/// As a reader of Python would write it: `['opt']`, `[3]`.
void append_key(std::string& path, const ValueTree& tree, ValueId key);

/// The way from the root of a tree to a value. Walks keep it as steps, for its text is wanted only
/// when something is wrong.
class ValuePath {
public:
    void enter_key(ValueId key) { steps_.push_back({key, 0}); }
    void enter_index(std::size_t index) { steps_.push_back({kNoValue, index}); }
    void enter_attributes() { steps_.push_back({kNoValue, kAttributes}); }
    void leave() { steps_.pop_back(); }
    /// `state['opt'][3]`.
    [[nodiscard]] std::string text(const ValueTree& tree) const;

private:
    static constexpr std::size_t kAttributes = SIZE_MAX;
    struct Step {
        ValueId key = kNoValue;  ///< of a dict; or
        std::size_t index = 0;   ///< of a list, or kAttributes
    };
    std::vector<Step> steps_;
};

/// Two's complement, little-endian, without the sign bytes that say nothing.
[[nodiscard]] std::string_view shortest_integer(std::string_view digits);

/// Whether two tensors are alike in all but where they lie.
[[nodiscard]] bool same_but_place(const TensorValue& a, const TensorValue& b);

/// The place of a value, by the first way that leads to it.
[[nodiscard]] std::string place_of(const ValueTree& tree, ValueId id);

/// Whether tensor number `a` of one tree is number `b` of another.
using SameTensor = std::function<bool(std::uint32_t a, std::uint32_t b)>;

/// The value of `a` that is not the same in `b`, or kNoValue: types, order and what is shared are
/// the same, floats to the bit. Of values that cannot change, copies are the same as one.
[[nodiscard]] ValueId difference(const ValueTree& a, const ValueTree& b, const SameTensor& same);
/// Whether there is none, tensors and storages included.
[[nodiscard]] bool same(const ValueTree& a, const ValueTree& b);
/// As difference(), with tensors as same() has them.
[[nodiscard]] ValueId difference(const ValueTree& a, const ValueTree& b);

/// Whether every element of the tensor lies in its storage; nothing overflows. One without elements
/// may begin anywhere: torch cuts rows and columns off past the end.
[[nodiscard]] bool fits(const TensorValue& tensor, std::uint64_t storage_bytes);

}  // namespace penstock::format
