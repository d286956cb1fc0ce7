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

using tier::Residency;
using tier::StoredTensor;

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

MemoryKind kind_of(const WeightStreamOptions& options) {
    return options.gpu ? MemoryKind::kDevice : MemoryKind::kHost;
}

// The best choice, which may need more than the budget.
Residency best_choice(const Weights& weights, std::uint64_t memory_bytes,
                      const WeightStreamOptions& options) {
    if (options.slots < 2) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                fmt::format("slots={}: expected 2 or more, one for the unit in use "
                                            "and one for the unit that is read meanwhile",
                                            options.slots)));
    }
    if (options.host_memory_bytes != 0 && !options.gpu) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                fmt::format("host_memory_bytes={} without a GPU: units that are "
                                            "used on the host have memory_bytes alone",
                                            options.host_memory_bytes)));
    }
    std::vector<std::uint64_t> bytes;
    for (const StoredTensor& tensor : weights.tensors) {
        bytes.push_back(tensor.bytes);
    }
    return tier::choose_residency(bytes, weights.units, memory_bytes, options.slots,
                                  kind_of(options));
}

Residency used_of(const Weights& weights, std::span<const WeightUnit> units,
                  const WeightStreamOptions& options) {
    Residency out = best_choice(weights, options.memory_bytes, options);
    if (out.used_bytes() > options.memory_bytes) {
        const auto [unit, most] = largest_of(weights);
        base::raise(base::error(
            ErrorCode::kOutOfMemory, kOperation,
            fmt::format("a budget of {} is too small for these units: they need {} ({} bytes), for "
                        "the largest, '{}', has {}; give more memory, or smaller units",
                        base::format_bytes(options.memory_bytes),
                        base::format_bytes(out.used_bytes()), out.used_bytes(), units[unit].name,
                        base::format_bytes(most))));
    }
    return out;
}

}  // namespace

Tiers tiers_of(const Weights& weights, std::span<const WeightUnit> units,
               const WeightStreamOptions& options) {
    Tiers out;
    out.used = used_of(weights, units, options);
    if (!options.gpu) {
        return out;
    }
    std::vector<std::uint64_t> bytes;  // of those that do not stay on the GPU
    for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
        bytes.push_back(out.used.stays[i] ? 0 : weights.tensors[i].bytes);
    }
    const Residency host =
        tier::choose_residency(bytes, weights.units, options.host_memory_bytes, 0);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        out.in_host.push_back(bytes[i] != 0 && host.stays[i]);
        out.host_bytes +=
            out.in_host[i] ? tier::memory_of_resident(bytes[i], MemoryKind::kHost) : 0;
    }
    return out;
}

WeightPlan plan_of(const Weights& weights, std::span<const WeightUnit> units, const Tiers& chosen,
                   std::uint64_t memory_bytes) {
    WeightPlan out;
    for (std::size_t i = 0; i < units.size(); ++i) {
        WeightPlan::Unit& unit = out.units.emplace_back();
        unit.name = units[i].name;
        for (const std::size_t tensor : weights.units[i]) {
            const std::uint64_t bytes = weights.tensors[tensor].bytes;
            unit.bytes += bytes;
            if (!chosen.used.stays[tensor]) {
                const bool is_copied = !chosen.in_host.empty() && chosen.in_host[tensor];
                (is_copied ? unit.copied_bytes : unit.read_bytes) += bytes;
            }
        }
        out.copied_bytes += unit.copied_bytes;
        out.read_bytes += unit.read_bytes;
    }
    out.memory_bytes = memory_bytes;
    out.resident_bytes = chosen.used.resident_bytes;
    out.slots = chosen.used.slots;
    out.slot_bytes = chosen.used.slot_bytes;
    out.host_bytes = chosen.host_bytes;
    return out;
}

Residency least_choice(const Weights& weights, const WeightStreamOptions& options) {
    return best_choice(weights, 0, options);
}

std::uint64_t most_memory(const Weights& weights, const WeightStreamOptions& options) {
    std::uint64_t bytes = 0;
    for (const StoredTensor& tensor : weights.tensors) {
        bytes += tier::memory_of_resident(tensor.bytes, kind_of(options));
    }
    return bytes;
}

}  // namespace weights

std::uint64_t least_weight_memory(const TensorTable& table, std::span<const WeightUnit> units,
                                  const WeightStreamOptions& options) {
    return weights::least_choice(weights::weights_of(table, units), options).used_bytes();
}

std::uint64_t most_weight_memory(const TensorTable& table, std::span<const WeightUnit> units,
                                 const WeightStreamOptions& options) {
    return weights::most_memory(weights::weights_of(table, units), options);
}

WeightPlan plan_weights(const TensorTable& table, std::span<const WeightUnit> units,
                        const WeightStreamOptions& options) {
    const weights::Weights all = weights::weights_of(table, units);
    return weights::plan_of(all, units, weights::tiers_of(all, units, options),
                            options.memory_bytes);
}

}  // namespace penstock
