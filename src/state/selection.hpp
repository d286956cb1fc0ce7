// SPDX-License-Identifier: Apache-2.0
// Which tensors are meant, and which part of one.
//
// What is wanted is a name; or, where no tensor has that name, a pattern with the rules of Python's
// fnmatch.fnmatchcase(): `*` is any text, `?` any character, `[a-c]` one of these, `[!a-c]` any
// other. A character is a code point, `.` and `/` are characters like others, and there is no
// escape but `[*]`. Ranges that end before they begin hold nothing.
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

struct Selected {
    std::size_t tensor = 0;  ///< its number among the names
    std::size_t wanted = 0;  ///< the number of what it was chosen by, the last one of several
};

/// Each tensor once, in the order of what is wanted, and what one pattern has in the order of the
/// names. kInvalidArgument for what nothing has, with a hint: see lacking().
[[nodiscard]] base::Result<std::vector<Selected>> select(std::span<const std::string_view> names,
                                                         std::span<const std::string_view> wanted);

/// "no tensor 'x'; did you mean 'y'?", for a message that begins with what has none.
[[nodiscard]] std::string lacking(std::string_view wanted, std::span<const std::string_view> names);

/// [begin[d], end[d]) of each dimension d.
struct TensorBox {
    std::vector<std::uint64_t> begin;
    std::vector<std::uint64_t> end;

    [[nodiscard]] std::uint64_t elements() const;
};

/// The box with bounds for each dimension: all of `shape` where it has none. kInvalidArgument,
/// naming the tensor, for one that is not inside.
[[nodiscard]] base::Result<TensorBox> inside(TensorBox box, std::span<const std::uint64_t> shape,
                                             std::string_view tensor);

}  // namespace penstock::state
