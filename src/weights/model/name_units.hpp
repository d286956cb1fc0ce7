// SPDX-License-Identifier: Apache-2.0
// Units by the names of tensors alone: no model is made. Pure text.
#pragma once

#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <string>
#include <vector>

namespace penstock::weights {

/// Embeddings that are read by row, as WeightForecast::rows, and whether the largest of them is the
/// head too.
struct Embeddings {
    std::vector<std::string> names;
    std::string tied;  ///< the name of that one, or empty
};
[[nodiscard]] Embeddings embeddings_of(const TensorTable& table);

/// The parts of a unit by the next component of its tensors' names at which these differ, in their
/// order; the unit itself where it has one tensor.
[[nodiscard]] std::vector<WeightUnit> parts_of(const WeightUnit& unit);

}  // namespace penstock::weights
