// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "base/units.hpp"
#include "weights/name_units.hpp"
#include "weights/unit_tensors.hpp"

#include <penstock/weight_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

using weights::Residency;
using weights::Weights;

constexpr std::string_view kOperation = "plan";
constexpr std::uint64_t kPaddingShare = 100;  // of the weights: what whole pages add, at most

std::uint64_t bytes_of(const Weights& all, std::size_t unit) {
    std::uint64_t bytes = 0;
    for (const std::size_t tensor : all.units[unit]) {
        bytes += all.tensors[tensor].bytes;
    }
    return bytes;
}

// Cuts the units that have parts and more bytes than `above`. Returns whether there was one.
bool cut(std::vector<WeightUnit>& units, const Weights& all, std::uint64_t above) {
    std::vector<WeightUnit> out;
    bool is_cut = false;
    for (std::size_t i = 0; i < units.size(); ++i) {
        if (units[i].tensors.size() > 1 && bytes_of(all, i) > above) {
            std::vector<WeightUnit> parts = weights::parts_of(units[i]);
            std::move(parts.begin(), parts.end(), std::back_inserter(out));
            is_cut = true;
        } else {
            out.push_back(std::move(units[i]));
        }
    }
    units = std::move(out);
    return is_cut;
}

// The largest units that have parts, and others that are not much smaller: equal layers are cut
// together.
bool cut_largest(const TensorTable& table, std::vector<WeightUnit>& units) {
    const Weights all = weights::weights_of(table, units);
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < units.size(); ++i) {
        largest = units[i].tensors.size() > 1 ? std::max(largest, bytes_of(all, i)) : largest;
    }
    return cut(units, all, largest / 2);
}

struct Least {
    std::uint64_t bytes = 0;
    std::string tensor;
};

// The least that works, of units of one tensor each.
Least least_of(const TensorTable& table, std::vector<WeightUnit> units, std::uint32_t slots) {
    while (cut(units, weights::weights_of(table, units), 0)) {
    }
    const Weights all = weights::weights_of(table, units);
    const Residency best = weights::least_choice(all, slots);
    Least out{best.used_bytes(), {}};
    std::uint64_t most = 0;  // of the tensors that are read; of all where none is
    for (std::size_t i = 0; i < all.tensors.size(); ++i) {
        if ((best.slots == 0 || !best.stays[i]) && all.tensors[i].bytes >= most) {
            most = all.tensors[i].bytes;
            out.tensor = all.names[i];
        }
    }
    return out;
}

// Without embeddings that are read by row.
std::vector<WeightUnit> without_rows(std::vector<WeightUnit> units,
                                     const weights::Embeddings& embeddings) {
    for (WeightUnit& unit : units) {
        std::erase_if(unit.tensors, [&](const std::string& name) {
            return name != embeddings.tied &&
                   std::find(embeddings.names.begin(), embeddings.names.end(), name) !=
                       embeddings.names.end();
        });
    }
    std::erase_if(units, [](const WeightUnit& unit) { return unit.tensors.empty(); });
    return units;
}

}  // namespace

WeightForecast forecast_weights(const TensorTable& table, std::uint64_t memory_bytes,
                                std::uint32_t slots) {
    if (table.tensors.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                "there are no tensors in it; give the files of a model",
                                table.path));
    }
    WeightForecast out;
    for (const TensorEntry& entry : table.tensors) {
        out.weight_bytes += entry.bytes;
    }
    std::vector<WeightUnit> units = find_weight_units(table);
    const weights::Embeddings embeddings = weights::embeddings_of(table);
    const std::vector<WeightUnit> streamed = without_rows(units, embeddings);
    Least least = least_of(table, streamed, slots);
    out.least_memory_bytes = least.bytes;
    out.least_tensor = std::move(least.tensor);
    if (memory_bytes < out.least_memory_bytes) {
        base::raise(base::error(
            ErrorCode::kOutOfMemory, kOperation,
            fmt::format("a budget of {} is too small: the least that works is {} ({} bytes), for "
                        "{} slots must hold tensors such as '{}'",
                        base::format_bytes(memory_bytes),
                        base::format_bytes(out.least_memory_bytes), out.least_memory_bytes, slots,
                        out.least_tensor),
            table.path));
    }
    if (out.weight_bytes + out.weight_bytes / kPaddingShare > memory_bytes) {
        units = streamed;
        out.rows = embeddings.names;
    }
    while (least_weight_memory(table, units, slots) > memory_bytes && cut_largest(table, units)) {
    }
    out.plan = plan_weights(table, units, memory_bytes, slots);
    return out;
}

double pass_seconds(const WeightPlan& plan, double bytes_per_second, double compute_seconds) {
    if (!(bytes_per_second > 0) || !(compute_seconds >= 0)) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                fmt::format("got {} bytes a second and {} seconds of computation; "
                                            "expected a rate above 0 and seconds from 0 on",
                                            bytes_per_second, compute_seconds)));
    }
    constexpr int kPasses = 6;
    constexpr int kSteady = 2;  // passes until each is as long as the one before
    double all_bytes = 0;
    for (const WeightPlan::Unit& unit : plan.units) {
        all_bytes += static_cast<double>(unit.bytes);
    }
    double device = 0;    // time when it has read what was asked of it so far
    double computed = 0;  // time when the last unit was computed
    double steady = 0;    // time when the passes before the measured ones ended
    std::vector<double> freed(plan.slots, 0.0);  // of each slot: when it was free again
    std::size_t slot = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        for (const WeightPlan::Unit& unit : plan.units) {
            const bool is_read = unit.read_bytes != 0 && plan.slots != 0;
            if (is_read) {
                device = std::max(device, freed[slot]) +
                         static_cast<double>(unit.read_bytes) / bytes_per_second;
            }
            computed = std::max(computed, is_read ? device : 0.0) +
                       compute_seconds * static_cast<double>(unit.bytes) / std::max(all_bytes, 1.0);
            if (is_read) {
                freed[slot] = computed;
                slot = (slot + 1) % freed.size();
            }
        }
        steady = pass + 1 == kSteady ? computed : steady;
    }
    return (computed - steady) / (kPasses - kSteady);
}

}  // namespace penstock
