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

/// Units, and tensors that are in none of them and stay in memory.
struct NamedUnits {
    std::vector<WeightUnit> units;
    std::vector<std::string> stay;
};

/// The units of find_weight_units() without what stays: modules of small_weight_bytes(), and
/// tensors of a module itself whose parts are units.
[[nodiscard]] NamedUnits named_units(const TensorTable& table);

/// The modules in the module of a unit, and of a list of modules its items, in their order. Its own
/// tensors stay. None where it has no modules.
[[nodiscard]] NamedUnits parts_of(const WeightUnit& unit);

}  // namespace penstock::weights
