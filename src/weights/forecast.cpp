// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "weights/experts/expert_layout.hpp"
#include "weights/model/name_units.hpp"
#include "weights/model/unit_tensors.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace penstock {

namespace {

using tier::Residency;
using weights::Weights;

constexpr std::string_view kOperation = "plan";

std::uint64_t bytes_of(const Weights& all, std::size_t unit) {
    std::uint64_t bytes = 0;
    for (const std::size_t tensor : all.units[unit]) {
        bytes += all.tensors[tensor].bytes;
    }
    return bytes;
}

std::uint64_t bytes_of(const TensorTable& table, const std::vector<std::string>& tensors) {
    const std::vector<WeightUnit> unit{{"stay", tensors}};
    return bytes_of(weights::weights_of(table, unit), 0);
}

// Divides units by the names of their tensors. `experts_bytes`: memory that their own budget takes.
FittedUnits fit(const TensorTable& table, weights::NamedUnits named, std::uint64_t memory_bytes,
                std::uint32_t slots, std::uint64_t experts_bytes) {
    const auto to_fit = [&] {
        return UnitsToFit{named.units, bytes_of(table, named.stay) + experts_bytes};
    };
    return fit_weight_units(
        table, to_fit(), {.memory_bytes = memory_bytes, .slots = slots},
        [&](std::span<const std::size_t> numbers) -> std::optional<UnitsToFit> {
            bool is_divided = false;
            std::vector<WeightUnit> units;
            for (std::size_t i = 0; i < named.units.size(); ++i) {
                weights::NamedUnits parts;
                if (std::find(numbers.begin(), numbers.end(), i) != numbers.end()) {
                    parts = weights::parts_of(named.units[i]);
                }
                is_divided = is_divided || !parts.units.empty();
                if (parts.units.empty()) {
                    parts.units.push_back(std::move(named.units[i]));
                }
                std::move(parts.units.begin(), parts.units.end(), std::back_inserter(units));
                std::move(parts.stay.begin(), parts.stay.end(), std::back_inserter(named.stay));
            }
            named.units = std::move(units);
            return is_divided ? std::optional(to_fit()) : std::nullopt;
        });
}

// The largest tensor that is read with the least budget; of all where none is.
std::string least_tensor(const TensorTable& table, const FittedUnits& least, std::uint32_t slots) {
    const Weights all = weights::weights_of(table, least.units);
    const Residency best = weights::least_choice(all, {.slots = slots});
    std::string out;
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < all.tensors.size(); ++i) {
        if ((best.slots == 0 || !best.stays[i]) && all.tensors[i].bytes >= most) {
            most = all.tensors[i].bytes;
            out = all.names[i];
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

// Without tensors of experts that are read one by one.
std::vector<WeightUnit> without_experts(std::vector<WeightUnit> units,
                                        const std::vector<ExpertLayer>& layers) {
    std::unordered_set<std::string_view> names;
    for (const ExpertLayer& layer : layers) {
        for (const std::vector<TensorPart>& expert : layer.experts) {
            for (const TensorPart& part : expert) {
                names.insert(part.tensor);
            }
        }
    }
    for (WeightUnit& unit : units) {
        std::erase_if(unit.tensors, [&](const std::string& name) { return names.contains(name); });
    }
    std::erase_if(units, [](const WeightUnit& unit) { return unit.tensors.empty(); });
    return units;
}

std::uint64_t bytes_of(const ExpertLayer& layer) {
    std::uint64_t bytes = 0;
    for (const std::vector<TensorPart>& expert : layer.experts) {
        for (const TensorPart& part : expert) {
            bytes += part.bytes;
        }
    }
    return bytes;
}

// The unit in which experts are called: the last of those whose names are most alike.
std::size_t unit_of(const WeightPlan& plan, const ExpertLayer& layer) {
    std::size_t best = 0;
    std::size_t most = 0;
    for (std::size_t i = 0; i < plan.units.size(); ++i) {
        const std::string& name = plan.units[i].name;
        const auto [end, of_layer] =
            std::mismatch(name.begin(), name.end(), layer.name.begin(), layer.name.end());
        // Whole components: "layers.1" is not alike "layers.10".
        auto same = static_cast<std::size_t>(end - name.begin());
        const bool is_whole = (end == name.end() || *end == '.') &&
                              (of_layer == layer.name.end() || *of_layer == '.');
        if (!is_whole) {
            same = name.rfind('.', same) == std::string::npos ? 0 : name.rfind('.', same);
        }
        if (same >= most) {
            most = same;
            best = i;
        }
    }
    return best;
}

// Bytes of the experts that a token uses in a layer.
double used_bytes(const ExpertLayer& layer, std::uint64_t experts_per_token) {
    const std::uint64_t count = layer.experts.size();
    const std::uint64_t chosen =
        experts_per_token == 0 ? count : std::min(experts_per_token, count);
    return static_cast<double>(bytes_of(layer)) / static_cast<double>(count) *
           static_cast<double>(chosen);
}

std::uint64_t rounded(double bytes) {
    return static_cast<std::uint64_t>(std::llround(bytes));
}

void add_experts(WeightForecast& out, const std::vector<ExpertLayer>& layers,
                 const weights::ExpertLayout& layout, std::uint64_t memory_bytes,
                 std::uint64_t experts_per_token) {
    ExpertForecast& experts = out.experts;
    experts.layers = layers.size();
    experts.experts = layout.experts;
    experts.memory_bytes = memory_bytes;
    experts.slot_bytes = layout.slot_bytes;
    experts.slots = layout.slot_bytes == 0
                        ? layout.experts
                        : std::min<std::uint64_t>(layout.experts, memory_bytes / layout.slot_bytes);
    experts.hits = static_cast<double>(experts.slots) / static_cast<double>(experts.experts);
    for (const ExpertLayer& layer : layers) {
        const std::uint64_t count = layer.experts.size();
        const std::uint64_t read =
            rounded(used_bytes(layer, experts_per_token) * (1 - experts.hits));
        experts.bytes += bytes_of(layer);
        experts.chosen += experts_per_token == 0 ? count : std::min(experts_per_token, count);
        experts.read_bytes += read;
        out.expert_read_bytes[unit_of(out.plan, layer)] += read;
    }
}

void add_token_bytes(WeightForecast& out, const TensorTable& table,
                     const std::vector<WeightUnit>& units, const std::vector<ExpertLayer>& layers,
                     const weights::Embeddings& embeddings, std::uint64_t experts_per_token) {
    const std::vector<WeightUnit> computed =
        without_experts(without_rows(units, embeddings), layers);
    const Weights all = weights::weights_of(table, computed);
    for (std::size_t i = 0, next = 0; i < units.size(); ++i) {
        const bool is_there = next < computed.size() && computed[next].name == units[i].name;
        out.token_bytes.push_back(is_there ? bytes_of(all, next) : 0);
        next += is_there ? 1 : 0;
    }
    for (const ExpertLayer& layer : layers) {
        out.token_bytes[unit_of(out.plan, layer)] += rounded(used_bytes(layer, experts_per_token));
    }
}

struct Step {
    std::uint64_t read_bytes = 0;    // ahead
    std::uint64_t demand_bytes = 0;  // while it computes
    double computing = 0;            // in any unit of measure
};

double seconds_of(const std::vector<Step>& steps, std::uint32_t slots, double bytes_per_second,
                  double compute_seconds) {
    if (!(bytes_per_second > 0) || !(compute_seconds >= 0)) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                fmt::format("got {} bytes a second and {} seconds of computation; "
                                            "expected a rate above 0 and seconds from 0 on",
                                            bytes_per_second, compute_seconds)));
    }
    constexpr int kPasses = 6;
    constexpr int kSteady = 2;  // passes until each is as long as the one before
    double all = 0;
    for (const Step& step : steps) {
        all += step.computing;
    }
    double device = 0;                      // time when it has read what was asked of it so far
    double computed = 0;                    // time when the last unit was computed
    double steady = 0;                      // time when the passes before the measured ones ended
    std::vector<double> freed(slots, 0.0);  // of each slot: when it was free again
    std::size_t slot = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        for (const Step& step : steps) {
            const bool is_read = step.read_bytes != 0 && slots != 0;
            if (is_read) {
                device = std::max(device, freed[slot]) +
                         static_cast<double>(step.read_bytes) / bytes_per_second;
            }
            const double begin = std::max(computed, is_read ? device : 0.0);
            const double waiting = static_cast<double>(step.demand_bytes) / bytes_per_second;
            if (step.demand_bytes != 0) {
                device = std::max(device, begin) + waiting;
            }
            computed = begin + waiting + compute_seconds * step.computing / std::max(all, 1.0);
            if (is_read) {
                freed[slot] = computed;
                slot = (slot + 1) % freed.size();
            }
        }
        steady = pass + 1 == kSteady ? computed : steady;
    }
    return (computed - steady) / (kPasses - kSteady);
}

}  // namespace

WeightForecast forecast_weights(const TensorTable& table, std::uint64_t memory_bytes,
                                std::uint32_t slots, std::uint64_t experts_per_token) {
    if (table.tensors.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                "there are no tensors in it; give the files of a model",
                                table.path));
    }
    WeightForecast out;
    for (const TensorEntry& entry : table.tensors) {
        out.weight_bytes += entry.bytes;
    }
    weights::NamedUnits model = weights::named_units(table);
    std::vector<WeightUnit> units = model.units;
    weights::Embeddings embeddings = weights::embeddings_of(table);
    std::erase_if(embeddings.names, [&](const std::string& name) {
        return std::find(model.stay.begin(), model.stay.end(), name) != model.stay.end();
    });
    std::vector<ExpertLayer> layers = find_expert_layers(table);
    model.units = without_experts(without_rows(units, embeddings), layers);
    if (model.units.empty()) {  // there are only experts: they are units as any other
        layers.clear();
        model.units = without_rows(units, embeddings);
    }
    const weights::ExpertLayout layout = weights::lay_out_experts(table, layers, {});
    const FittedUnits least = fit(table, model, 0, slots, layout.least_bytes());
    out.least_memory_bytes = least.least_bytes;
    out.least_tensor = least_tensor(table, least, slots);
    if (!layers.empty() && layout.least_bytes() >= least.least_bytes - least.outside_bytes) {
        out.least_tensor = layers[0].experts[0][0].tensor;
    }
    if (memory_bytes < out.least_memory_bytes) {
        base::raise(base::error(
            ErrorCode::kOutOfMemory, kOperation,
            fmt::format("a budget of {} is too small: the least that works is {} ({} bytes), "
                        "because {} slots must hold tensors such as '{}'",
                        base::format_bytes(memory_bytes),
                        base::format_bytes(out.least_memory_bytes), out.least_memory_bytes, slots,
                        out.least_tensor),
            table.path));
    }
    out.stay_bytes = bytes_of(table, model.stay);
    const bool is_streamed = out.stay_bytes + most_weight_memory(table, units) > memory_bytes;
    std::uint64_t of_units = memory_bytes - out.stay_bytes;
    if (is_streamed) {
        out.rows = embeddings.names;
        FittedUnits fitted =
            fit(table, std::move(model), memory_bytes, slots, layout.least_bytes());
        units = std::move(fitted.units);
        out.stay_bytes = fitted.outside_bytes - layout.least_bytes();
        of_units = memory_bytes - out.stay_bytes;
        if (!layers.empty()) {
            const Weights all = weights::weights_of(table, units);
            of_units = share_weight_memory(of_units, fitted.least_bytes - fitted.outside_bytes,
                                           weights::most_memory(all, {}), layout.least_bytes())
                           .units_bytes;
        }
    }
    out.plan = plan_weights(table, units, {.memory_bytes = of_units, .slots = slots});
    out.plan.memory_bytes = memory_bytes;
    out.expert_read_bytes.resize(out.plan.units.size());
    add_token_bytes(out, table, units, layers, embeddings, experts_per_token);
    if (is_streamed && !layers.empty()) {
        add_experts(out, layers, layout, memory_bytes - out.stay_bytes - of_units,
                    experts_per_token);
    }
    return out;
}

double pass_seconds(const WeightPlan& plan, double bytes_per_second, double compute_seconds) {
    std::vector<Step> steps;
    for (const WeightPlan::Unit& unit : plan.units) {
        steps.push_back({unit.read_bytes, 0, static_cast<double>(unit.bytes)});
    }
    return seconds_of(steps, plan.slots, bytes_per_second, compute_seconds);
}

double pass_seconds(const WeightForecast& forecast, double bytes_per_second,
                    double compute_seconds) {
    const WeightPlan& plan = forecast.plan;
    std::vector<Step> steps;
    for (std::size_t i = 0; i < plan.units.size(); ++i) {
        steps.push_back({plan.units[i].read_bytes, forecast.expert_read_bytes[i],
                         static_cast<double>(forecast.token_bytes[i])});
    }
    return seconds_of(steps, plan.slots, bytes_per_second, compute_seconds);
}

}  // namespace penstock
