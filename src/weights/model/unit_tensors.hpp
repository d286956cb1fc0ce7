// SPDX-License-Identifier: Apache-2.0
// The tensors that units name, found in a table, and the plan for them.
#pragma once

#include "weights/stream/residency.hpp"
#include "weights/stream/slot_layout.hpp"

#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::weights {

/// Each tensor once, however many units have it.
struct Weights {
    std::vector<StoredTensor> tensors;
    std::vector<std::string> names;
    UnitTensors units;
};

/// Throws Error: kInvalidArgument for a name that is not in the table, kUnsupported for strides.
[[nodiscard]] Weights weights_of(const TensorTable& table, std::span<const WeightUnit> units);

/// Throws Error: kOutOfMemory for a budget that is too small.
[[nodiscard]] Residency residency_of(const Weights& weights, std::span<const WeightUnit> units,
                                     std::uint64_t memory_bytes, std::uint32_t slots);

/// The choice that needs the least memory.
[[nodiscard]] Residency least_choice(const Weights& weights, std::uint32_t slots);

/// The least budget that is not too small.
[[nodiscard]] std::uint64_t least_memory(const Weights& weights, std::uint32_t slots);

/// The budget with which all tensors stay.
[[nodiscard]] std::uint64_t most_memory(const Weights& weights);

[[nodiscard]] WeightPlan plan_of(const Weights& weights, std::span<const WeightUnit> units,
                                 const Residency& chosen, std::uint64_t memory_bytes);

}  // namespace penstock::weights
