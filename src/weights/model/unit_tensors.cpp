// SPDX-License-Identifier: Apache-2.0
#include "weights/model/unit_tensors.hpp"

#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "weights/model/table_index.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace weights {

namespace {

constexpr std::string_view kOperation = "stream";

// The unit that has the most bytes, and these.
std::pair<std::size_t, std::uint64_t> largest_of(const Weights& weights) {
    std::pair<std::size_t, std::uint64_t> out{0, 0};
    for (std::size_t i = 0; i < weights.units.size(); ++i) {
        std::uint64_t bytes = 0;
        for (const std::size_t tensor : weights.units[i]) {
            bytes += weights.tensors[tensor].bytes;
        }
        if (bytes > out.second) {
            out = {i, bytes};
        }
    }
    return out;
}

}  // namespace

Weights weights_of(const TensorTable& table, std::span<const WeightUnit> units) {
    const TableIndex index(table);
    Weights out;
    std::unordered_map<const TensorEntry*, std::size_t> numbers;  // of an entry: its number here
    for (const WeightUnit& unit : units) {
        std::vector<std::size_t>& tensors = out.units.emplace_back();
        for (const std::string& name : unit.tensors) {
            const TensorEntry& entry = index.at(fmt::format("unit '{}'", unit.name), name);
            const auto [number, is_new] = numbers.emplace(&entry, out.tensors.size());
            if (is_new) {
                out.tensors.push_back(stored_tensor(entry));
                out.names.push_back(name);
            }
            tensors.push_back(number->second);
        }
    }
    return out;
}

namespace {

// The best choice, which may need more than the budget.
Residency best_choice(const Weights& weights, std::uint64_t memory_bytes, std::uint32_t slots) {
    if (slots < 2) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                fmt::format("slots={}: expected 2 or more, one for the unit in use "
                                            "and one for the unit that is read meanwhile",
                                            slots)));
    }
    std::vector<std::uint64_t> bytes;
    for (const StoredTensor& tensor : weights.tensors) {
        bytes.push_back(tensor.bytes);
    }
    return choose_residency(bytes, weights.units, memory_bytes, slots);
}

}  // namespace

Residency residency_of(const Weights& weights, std::span<const WeightUnit> units,
                       std::uint64_t memory_bytes, std::uint32_t slots) {
    Residency out = best_choice(weights, memory_bytes, slots);
    if (out.used_bytes() > memory_bytes) {
        const auto [unit, most] = largest_of(weights);
        base::raise(base::error(
            ErrorCode::kOutOfMemory, kOperation,
            fmt::format("a budget of {} is too small for these units: they need {} ({} bytes), for "
                        "the largest, '{}', has {}; give more memory, or smaller units",
                        base::format_bytes(memory_bytes), base::format_bytes(out.used_bytes()),
                        out.used_bytes(), units[unit].name, base::format_bytes(most))));
    }
    return out;
}

WeightPlan plan_of(const Weights& weights, std::span<const WeightUnit> units,
                   const Residency& chosen, std::uint64_t memory_bytes) {
    WeightPlan out;
    for (std::size_t i = 0; i < units.size(); ++i) {
        WeightPlan::Unit& unit = out.units.emplace_back();
        unit.name = units[i].name;
        for (const std::size_t tensor : weights.units[i]) {
            unit.bytes += weights.tensors[tensor].bytes;
            unit.read_bytes += chosen.stays[tensor] ? 0 : weights.tensors[tensor].bytes;
        }
    }
    out.memory_bytes = memory_bytes;
    out.resident_bytes = chosen.resident_bytes;
    out.slots = chosen.slots;
    out.slot_bytes = chosen.slot_bytes;
    out.read_bytes = chosen.read_bytes;
    return out;
}

Residency least_choice(const Weights& weights, std::uint32_t slots) {
    return best_choice(weights, 0, slots);
}

std::uint64_t least_memory(const Weights& weights, std::uint32_t slots) {
    return least_choice(weights, slots).used_bytes();
}

std::uint64_t most_memory(const Weights& weights) {
    std::uint64_t bytes = 0;
    for (const StoredTensor& tensor : weights.tensors) {
        bytes += memory_of(tensor.bytes);
    }
    return bytes;
}

}  // namespace weights

std::uint64_t least_weight_memory(const TensorTable& table, std::span<const WeightUnit> units,
                                  std::uint32_t slots) {
    return weights::least_memory(weights::weights_of(table, units), slots);
}

std::uint64_t most_weight_memory(const TensorTable& table, std::span<const WeightUnit> units) {
    return weights::most_memory(weights::weights_of(table, units));
}

WeightPlan plan_weights(const TensorTable& table, std::span<const WeightUnit> units,
                        std::uint64_t memory_bytes, std::uint32_t slots) {
    const weights::Weights all = weights::weights_of(table, units);
    return weights::plan_of(all, units, weights::residency_of(all, units, memory_bytes, slots),
                            memory_bytes);
}

}  // namespace penstock
