// SPDX-License-Identifier: Apache-2.0
// Selects tensors by name or pattern, and parts of them.
//
// A selection is a name, of a tensor or of what is above tensors ("model" of "model.weight"); or,
// if nothing has that name, a pattern with the rules of Python's fnmatch.fnmatchcase(): `*` is any
// text, `?` any character, `[a-c]` one of these, `[!a-c]` any other. A character is a code point,
// `.` and `/` are ordinary characters, and there is no escape but `[*]`. Reversed ranges hold
// nothing.
#pragma once

#include "base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

[[nodiscard]] bool matches(std::string_view name, std::string_view pattern);
[[nodiscard]] bool is_pattern(std::string_view wanted);
/// Whether a name is of what lies below another: "model.weight" is below "model".
[[nodiscard]] bool is_below(std::string_view name, std::string_view above);

struct Selected {
    std::size_t tensor = 0;  ///< its number among the names
    std::size_t wanted = 0;  ///< index of the last name or pattern that chose it
};

/// Each tensor once, in the order of `wanted`, and those of one pattern in the order of the names.
/// kInvalidArgument for a name or pattern without a tensor, with a hint: see lacking().
[[nodiscard]] base::Result<std::vector<Selected>> select(std::span<const std::string_view> names,
                                                         std::span<const std::string_view> wanted);

/// "no tensor 'x'; did you mean 'y'?", the beginning of a message.
[[nodiscard]] std::string lacking(std::string_view wanted, std::span<const std::string_view> names);

/// [begin[d], end[d]) of each dimension d.
struct TensorBox {
    std::vector<std::uint64_t> begin;
    std::vector<std::uint64_t> end;

    [[nodiscard]] std::uint64_t elements() const;
};

/// The box with bounds for each dimension: all of `shape` if it has none. kInvalidArgument, with
/// the tensor's name, for a box that is not inside.
[[nodiscard]] base::Result<TensorBox> inside(TensorBox box, std::span<const std::uint64_t> shape,
                                             std::string_view tensor);

}  // namespace penstock::state
