// SPDX-License-Identifier: Apache-2.0
// The tensors that units name, found in a table, and the plan for them.
#pragma once

#include "tier/residency.hpp"
#include "tier/slot_layout.hpp"

#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::weights {

/// Each tensor once, however many units have it.
struct Weights {
    std::vector<tier::StoredTensor> tensors;
    std::vector<std::string> names;
    tier::UnitTensors units;
};

/// Throws Error: kInvalidArgument for a name that is not in the table, kUnsupported for strides.
[[nodiscard]] Weights weights_of(const TensorTable& table, std::span<const WeightUnit> units);

/// Which tensors stay where they are used, and which of the others in pinned host memory.
struct Tiers {
    tier::Residency used;
    std::vector<bool> in_host;  ///< of each tensor; none without a GPU
    std::uint64_t host_bytes = 0;
};

/// The choice for `options.memory_bytes` and the other budgets. Throws Error: kOutOfMemory for a
/// budget that is too small.
[[nodiscard]] Tiers tiers_of(const Weights& weights, std::span<const WeightUnit> units,
                             const WeightStreamOptions& options);

/// The choice that needs the least memory.
[[nodiscard]] tier::Residency least_choice(const Weights& weights,
                                           const WeightStreamOptions& options);

/// The budget with which all tensors stay.
[[nodiscard]] std::uint64_t most_memory(const Weights& weights, const WeightStreamOptions& options);

[[nodiscard]] WeightPlan plan_of(const Weights& weights, std::span<const WeightUnit> units,
                                 const Tiers& chosen, std::uint64_t memory_bytes);

}  // namespace penstock::weights
