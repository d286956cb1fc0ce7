// SPDX-License-Identifier: Apache-2.0
// Objects of torch that are made of other values: sparse, quantized and nested tensors, bare
// storages. One table says what each is made of. The reader of pickles fills it from the arguments
// of torch's functions, the writer writes those again, and the grammar checks it.
#pragma once

#include "format/value.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::format {

enum class Rebuilt : std::uint8_t {
    kStorage,    ///< a torch.TypedStorage
    kView,       ///< a tensor of a type that has no arithmetic (bits8)
    kSparseCoo,  ///< a sparse tensor, and so on for the four compressed layouts
    kSparseCsr,
    kSparseCsc,
    kSparseBsr,
    kSparseBsc,
    kQuantized,
    kNested,     ///< of layout strided
    kJagged,     ///< a nested tensor of layout jagged
    kMeta,       ///< a tensor without data
    kParameter,  ///< a parameter that is one of the above
};

/// The meaning of a part.
enum class PartKind : std::uint8_t {
    kTensor,  ///< a dense tensor
    kTensorOrNone,
    kWhole,    ///< a dense tensor that is all of its storage, in one dimension
    kRebuilt,  ///< one of the above that is a tensor
    kDtype,    ///< a dtype of torch, by name
    kDtypeOrNone,
    kScheme,  ///< a qscheme of torch, by name
    kSize,    ///< a tuple or torch.Size of numbers that are not negative
    kIndex,   ///< an integer that is not negative
    kIndexOrNone,
    kBool,
    kBoolOrNone,
    kScale,  ///< a float, an integer, a list of these, or a dense tensor
};

struct RebuiltPart {
    std::string_view name;  ///< of a tensor: what its name in the state ends in
    PartKind part;
};

struct RebuiltRow {
    Rebuilt rebuilt;
    std::string_view tag;       ///< Value::text
    std::string_view function;  ///< of torch._utils (or torch.nested), that makes it; or empty
    std::string_view what;      ///< for people
    std::array<RebuiltPart, 10> parts;
    std::size_t count;
};

inline constexpr std::array<RebuiltRow, 12> kRebuilt{{
    {Rebuilt::kStorage,
     "storage",
     "",
     "bare storages, as a torch.TypedStorage",
     {{{"storage", PartKind::kWhole}, {"dtype", PartKind::kDtypeOrNone}}},
     2},
    {Rebuilt::kView,
     "view",
     "_rebuild_tensor_v3",
     "tensors of bits8, bits16, bits1x8, bits2x4, bits4x2",
     {{{"bits", PartKind::kTensor}, {"dtype", PartKind::kDtype}}},
     2},
    {Rebuilt::kSparseCoo,
     "sparse_coo",
     "_rebuild_sparse_tensor",
     "sparse tensors of layout torch.sparse_coo",
     {{{"indices", PartKind::kTensor},
       {"values", PartKind::kTensor},
       {"size", PartKind::kSize},
       {"coalesced", PartKind::kBoolOrNone}}},
     4},
    {Rebuilt::kSparseCsr,
     "sparse_csr",
     "_rebuild_sparse_tensor",
     "of torch.sparse_csr",
     {{{"crow_indices", PartKind::kTensor},
       {"col_indices", PartKind::kTensor},
       {"values", PartKind::kTensor},
       {"size", PartKind::kSize}}},
     4},
    {Rebuilt::kSparseCsc,
     "sparse_csc",
     "_rebuild_sparse_tensor",
     "of torch.sparse_csc",
     {{{"ccol_indices", PartKind::kTensor},
       {"row_indices", PartKind::kTensor},
       {"values", PartKind::kTensor},
       {"size", PartKind::kSize}}},
     4},
    {Rebuilt::kSparseBsr,
     "sparse_bsr",
     "_rebuild_sparse_tensor",
     "of torch.sparse_bsr",
     {{{"crow_indices", PartKind::kTensor},
       {"col_indices", PartKind::kTensor},
       {"values", PartKind::kTensor},
       {"size", PartKind::kSize}}},
     4},
    {Rebuilt::kSparseBsc,
     "sparse_bsc",
     "_rebuild_sparse_tensor",
     "of torch.sparse_bsc",
     {{{"ccol_indices", PartKind::kTensor},
       {"row_indices", PartKind::kTensor},
       {"values", PartKind::kTensor},
       {"size", PartKind::kSize}}},
     4},
    {Rebuilt::kQuantized,
     "quantized",
     "_rebuild_qtensor",
     "quantized tensors, per tensor and per channel",
     {{{"int_repr", PartKind::kWhole},
       {"dtype", PartKind::kDtype},
       {"offset", PartKind::kIndex},
       {"size", PartKind::kSize},
       {"stride", PartKind::kSize},
       {"scheme", PartKind::kScheme},
       {"scale", PartKind::kScale},
       {"zero_point", PartKind::kScale},
       {"axis", PartKind::kIndexOrNone},
       {"requires_grad", PartKind::kBool}}},
     10},
    {Rebuilt::kNested,
     "nested",
     "_rebuild_nested_tensor",
     "nested tensors of layout torch.strided",
     {{{"buffer", PartKind::kTensor},
       {"sizes", PartKind::kTensor},
       {"strides", PartKind::kTensor},
       {"offsets", PartKind::kTensor}}},
     4},
    {Rebuilt::kJagged,
     "jagged",
     "_rebuild_njt",
     "nested tensors of layout torch.jagged",
     {{{"values", PartKind::kTensor},
       {"offsets", PartKind::kTensor},
       {"lengths", PartKind::kTensorOrNone},
       {"min_seqlen", PartKind::kTensorOrNone},
       {"max_seqlen", PartKind::kTensorOrNone},
       {"ragged_idx", PartKind::kIndex},
       {"requires_grad", PartKind::kBool}}},
     7},
    {Rebuilt::kMeta,
     "meta",
     "_rebuild_meta_tensor_no_storage",
     "tensors of the meta device, which have no data",
     {{{"dtype", PartKind::kDtype},
       {"size", PartKind::kSize},
       {"stride", PartKind::kSize},
       {"requires_grad", PartKind::kBool}}},
     4},
    {Rebuilt::kParameter,
     "parameter",
     "_rebuild_parameter",
     "parameters that are one of these",
     {{{"data", PartKind::kRebuilt}, {"requires_grad", PartKind::kBool}}},
     2},
}};

/// nullptr for any other name.
[[nodiscard]] const RebuiltRow* rebuilt_tagged(std::string_view tag);
/// The compressed or plain layout of its tag, or nullptr.
[[nodiscard]] const RebuiltRow* sparse_of_layout(std::string_view layout);

/// A type whose elements are integers with a scale, or have no arithmetic at all: the storages of
/// torch hold its elements as those of another type.
struct HeldType {
    std::string_view name;         ///< torch's
    tensor::ElementType held;      ///< what the storage holds
    std::uint8_t elements_a_unit;  ///< that one of those has
    std::string_view storage;      ///< the class of its storages; empty: untyped
};
inline constexpr std::array<HeldType, 10> kHeldTypes{{
    {"qint8", tensor::ElementType::kI8, 1, "QInt8Storage"},
    {"quint8", tensor::ElementType::kU8, 1, "QUInt8Storage"},
    {"qint32", tensor::ElementType::kI32, 1, "QInt32Storage"},
    {"quint4x2", tensor::ElementType::kU8, 2, "QUInt4x2Storage"},
    {"quint2x4", tensor::ElementType::kU8, 4, "QUInt2x4Storage"},
    {"bits8", tensor::ElementType::kU8, 1, ""},
    {"bits16", tensor::ElementType::kU16, 1, ""},
    {"bits1x8", tensor::ElementType::kU8, 1, ""},
    {"bits2x4", tensor::ElementType::kU8, 1, ""},
    {"bits4x2", tensor::ElementType::kU8, 1, ""},
}};
/// nullptr for any other name.
[[nodiscard]] const HeldType* held_type_named(std::string_view name);
[[nodiscard]] const HeldType* held_type_of_storage(std::string_view storage_class);

enum class Constant : std::uint8_t { kNone, kDtype, kScheme, kLayout, kClass };
/// Says what a name of the module torch is, if a state may hold it as a value: "float32", "qint8",
/// "per_tensor_affine", "sparse_coo", "FloatTensor", "cuda.FloatTensor".
[[nodiscard]] Constant torch_constant(std::string_view name);

/// Whether an attribute of a tensor is a hint for torch.compile, by its name. Torch sets some on
/// the parts of a jagged tensor whenever it makes one.
[[nodiscard]] bool is_compile_hint(std::string_view attribute);
/// Removes the hints from the attributes of a value; not those that hold anything but what torch
/// puts there.
void drop_compile_hints(ValueTree& tree, ValueId id);

/// Empty, or what is wrong with a kRebuilt.
[[nodiscard]] std::string wrong_rebuilt(const ValueTree& tree, const Value& value);

}  // namespace penstock::format
