// SPDX-License-Identifier: Apache-2.0
// The bytes that an optimizer adds to the weights.
#pragma once

#include <penstock/plan.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::plan {

inline constexpr double kSniaBytes = 14;  // of a parameter: the optimizer "snia"

/// Throws Error (kInvalidArgument) with the nearest name.
[[nodiscard]] OptimizerBytes optimizer_named(std::string_view verb, std::string_view name);

/// The whole checkpoint, and how that comes about.
struct StateBytes {
    double bytes = 0;
    double per_parameter = 0;
    std::string formula;    ///< of `bytes`, in terms of parameters and bytes_per_parameter
    std::string source;     ///< of `per_parameter`
    bool by_shape = false;  ///< from the shapes of tensors: not the same for each parameter
};

/// Bytes that a rank keeps of one tensor besides the weights, where the optimizer is by_shape:
/// master weights, and states by the shape of the rank's part of the tensor.
[[nodiscard]] double other_bytes(const OptimizerBytes& optimizer, std::uint64_t rows,
                                 std::uint64_t columns, bool matrix);

[[nodiscard]] StateBytes state_bytes(const ModelParameters& model, const OptimizerBytes& optimizer,
                                     const std::optional<double>& bytes_per_parameter);

}  // namespace penstock::plan
