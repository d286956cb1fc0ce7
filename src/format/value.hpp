// SPDX-License-Identifier: Apache-2.0
// The values of a training state, independent of Python: the values that a .pt holds, numbered, so
// that a value in two places is one value, and a tree of any depth is freed without recursion.
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
    kBigInt,       ///< text: two's complement, little-endian, if it does not fit into 64 bits
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
    kOrderedDict,  ///< likewise; attributes: a dict of the object's attributes
    kDefaultDict,  ///< likewise; text: the factory of missing values ("list"), or empty for None
    kCounter,      ///< likewise
    kSize,         ///< torch.Size: items, integers
    kDtype,        ///< text: "float32", a name of torch's: see torch_constant()
    kDevice,       ///< text: "cpu", "cuda:1"
    kTensor,       ///< integer: its number in `tensors`
    kNumpyScalar,  ///< text: "<f8" as NumPy spells it; data
    kNumpyArray,   ///< likewise; flag: Fortran order; items: its shape
    kPickled,      ///< text: a pickle of an object of Python, which is never read here
    kRebuilt,      ///< text: its tag in rebuilt.hpp; items: its parts
    kUnread,       ///< an object of a pickle that is not built. text: its name; data: why; items:
                   ///< key, value, of what it was made of and holds. flag: the bytes contradict
                   ///< themselves (only while a pickle is read)
    kPerRank,      ///< items: key, value, by the numbers of ranks: what each of them has here
    // Below: kinds that exist only while a pickle is read.
    kGlobal,      ///< integer: which; text: its name; data: its module
    kStorage,     ///< integer: its number in `storages`
    kNumpyDtype,  ///< text
    kNewTensor,   ///< text: its class; a tensor that has no storage yet
};

struct Value {
    ValueKind kind = ValueKind::kNone;
    bool flag = false;
    ValueId attributes = kNoValue;  ///< of an OrderedDict, a tensor, a kRebuilt: a dict
    std::int64_t integer = 0;
    double real = 0;
    double imaginary = 0;
    std::string text;
    std::string data;
    std::vector<ValueId> items;
};

/// Memory of tensors, one record of the file.
struct StorageValue {
    std::uint64_t bytes = 0;
    std::string location = "cpu";  ///< the device that it was on: "cuda:0"
    std::string key;               ///< its name in the file that was read
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
    std::string place = "state";  ///< of the root, in messages

    ValueId add(Value value);
    [[nodiscard]] const Value& at(ValueId id) const { return values[id]; }
};

/// Appends a key as Python prints it: `['opt']`, `[3]`.
void append_key(std::string& path, const ValueTree& tree, ValueId key);

/// The path from the root of a tree to a value. Kept as steps, since its text is needed only for
/// errors.
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

/// Two's complement, little-endian, without redundant sign bytes.
[[nodiscard]] std::string_view shortest_integer(std::string_view digits);

/// Whether two tensors are equal in everything but their storage and offset.
[[nodiscard]] bool same_but_place(const TensorValue& a, const TensorValue& b);

/// Whether two values are equal by themselves: in all but their items, their attributes and, of
/// tensors, their numbers.
[[nodiscard]] bool same_alone(const Value& a, const Value& b);

/// The place of a value, by the first path to it.
[[nodiscard]] std::string place_of(const ValueTree& tree, ValueId id);

/// Whether tensor number `a` of one tree is number `b` of another.
using SameTensor = std::function<bool(std::uint32_t a, std::uint32_t b)>;

/// The value of `a` that is not the same in `b`, or kNoValue: types, order and sharing are the
/// same, floats to the bit. For values that cannot change, copies count as the same.
[[nodiscard]] ValueId difference(const ValueTree& a, const ValueTree& b, const SameTensor& same);
/// Whether there is no difference, tensors and storages included.
[[nodiscard]] bool same(const ValueTree& a, const ValueTree& b);
/// Does the same, and compares tensors as same() does.
[[nodiscard]] ValueId difference(const ValueTree& a, const ValueTree& b);

/// Whether every element of the tensor lies in its storage, without overflow. A tensor without
/// elements may begin anywhere: torch cuts rows and columns off past the end.
[[nodiscard]] bool fits(const TensorValue& tensor, std::uint64_t storage_bytes);

}  // namespace penstock::format
