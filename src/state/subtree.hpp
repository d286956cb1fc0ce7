// SPDX-License-Identifier: Apache-2.0
// A part of a state, by its name: what a load gives for names="model", with nothing else of the
// state read; and the types that its tensors are converted to.
#pragma once

#include "base/result.hpp"
#include "format/value.hpp"
#include "tensor/element_type.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::state {

struct Subtree {
    format::ValueTree tree;
    std::vector<std::uint32_t> storages;  ///< the number that each of its storages had
};

/// The value and what is below it, with the storages of its tensors.
[[nodiscard]] Subtree subtree_of(const format::ValueTree& tree, format::ValueId root);

/// Gives what a load by names does where one of them is a part of the state that is no tensor: for
/// `one` name the part itself (of a flat dict, the tensors below the name, without it), else a dict
/// that has each part, and each tensor that select() finds, under its name. Nothing where the names
/// are those of tensors, or patterns, alone. Throws kInvalidArgument for a name that has several
/// values. The result is the error of select() for a name in a list that has none.
[[nodiscard]] base::Result<std::optional<Subtree>> named_parts(
    const format::ValueTree& tree, std::span<const std::string_view> wanted, bool one);

/// The dict alone, whatever the names are.
[[nodiscard]] base::Result<Subtree> dict_of_parts(const format::ValueTree& tree,
                                                  std::span<const std::string_view> wanted);

/// Whether a load converts tensors of this type to another of these types.
[[nodiscard]] bool is_converted(tensor::ElementType type);

/// Gives the tensors of the tree a type, as far as is_converted() and all tensors of their storage
/// have one type. What each storage was made of: nothing where it stays as it is.
std::vector<std::optional<tensor::ElementType>> set_types(format::ValueTree& tree,
                                                          tensor::ElementType to);

}  // namespace penstock::state
