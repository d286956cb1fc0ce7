// SPDX-License-Identifier: Apache-2.0
// How an answer is built: each figure with the formula and the inputs that it comes from.
#pragma once

#include <penstock/plan_model.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::plan {

inline constexpr std::string_view kGiven = "given";
inline constexpr std::string_view kDefault = "default";
inline constexpr std::string_view kComputed = "computed above";

/// Adds the figure. Throws Error (kInvalidArgument), with the name of the figure, where the value
/// is not finite: the inputs are too large for one another.
const Figure& add_figure(Answer& answer, Figure figure);

/// A figure of the answer as an input of another.
[[nodiscard]] Input input_of(const Answer& answer, std::string_view figure);

/// A row of a table. Cells are made in place: in GCC 12 the copy of a variant, as lists make it,
/// must not run out of memory.
template <typename... Values>
[[nodiscard]] std::vector<Cell> row_of(Values&&... values) {
    std::vector<Cell> row;
    row.reserve(sizeof...(values));
    (row.emplace_back(std::forward<Values>(values)), ...);
    return row;
}

}  // namespace penstock::plan
