// SPDX-License-Identifier: Apache-2.0
#include "weights/model/name_units.hpp"

#include <penstock/weights.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace weights {

namespace {

bool is_number(std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
}

// The end of the first component that is a number: "model.layers.0" of "model.layers.0.mlp.up".
std::optional<std::size_t> end_of_layer(std::string_view name) {
    for (std::size_t begin = 0; begin < name.size();) {
        const std::size_t end = std::min(name.find('.', begin), name.size());
        if (end != name.size() && is_number(name.substr(begin, end - begin))) {
            return end;
        }
        begin = end + 1;
    }
    return std::nullopt;
}

std::string_view module_of(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? name : name.substr(0, dot);
}

// Adds to the unit of that name, which is made where it is new.
class Grouped {
public:
    WeightUnit& unit(std::string_view name) {
        const auto [found, is_new] = numbers_.emplace(name, units.size());
        if (is_new) {
            units.push_back({std::string(name), {}});
        }
        return units[found->second];
    }
    std::vector<WeightUnit> units;

private:
    std::unordered_map<std::string, std::size_t> numbers_;
};

// Layers of one group by number, in the places that they have in the list.
void sort_layers(std::vector<WeightUnit>& units) {
    std::map<std::string, std::vector<std::size_t>> groups;  // by the name before the number
    for (std::size_t i = 0; i < units.size(); ++i) {
        const std::string& name = units[i].name;
        const std::size_t digits = name.find_last_not_of("0123456789") + 1;
        if (digits != name.size()) {
            groups[name.substr(0, digits)].push_back(i);
        }
    }
    for (const auto& [prefix, places] : groups) {
        std::vector<WeightUnit> layers;
        for (const std::size_t place : places) {
            layers.push_back(std::move(units[place]));
        }
        std::stable_sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
            return std::pair(a.name.size(), std::string_view(a.name)) <
                   std::pair(b.name.size(), std::string_view(b.name));
        });
        for (std::size_t i = 0; i < places.size(); ++i) {
            units[places[i]] = std::move(layers[i]);
        }
    }
}

bool is_embedding(const TensorEntry& entry) {
    constexpr std::array<std::string_view, 4> kNames{"wte", "wpe", "shared", "tok_embeddings"};
    if (entry.shape.size() != 2 || end_of_layer(entry.name)) {
        return false;
    }
    const std::string_view module = module_of(entry.name);
    const std::string_view last = module.substr(module.rfind('.') + 1);
    return entry.name.ends_with(".weight") &&
           (last.find("embed") != std::string_view::npos ||
            std::find(kNames.begin(), kNames.end(), last) != kNames.end());
}

}  // namespace

Embeddings embeddings_of(const TensorTable& table) {
    Embeddings out;
    const TensorEntry* largest = nullptr;
    for (const TensorEntry& entry : table.tensors) {
        if (is_embedding(entry)) {
            out.names.push_back(entry.name);
            largest = largest == nullptr || entry.bytes > largest->bytes ? &entry : largest;
        }
    }
    const bool has_head = std::any_of(
        table.tensors.begin(), table.tensors.end(), [largest](const TensorEntry& entry) {
            return largest != nullptr && entry.shape == largest->shape && !is_embedding(entry);
        });
    if (largest != nullptr && !has_head) {
        out.tied = largest->name;
    }
    return out;
}

std::vector<WeightUnit> parts_of(const WeightUnit& unit) {
    if (unit.tensors.size() <= 1) {
        return {unit};
    }
    const std::size_t begin = unit.name.size() + 1;
    Grouped parts;
    for (const std::string& tensor : unit.tensors) {
        const bool is_inside = tensor.size() > begin && tensor.starts_with(unit.name + ".");
        const std::size_t end = is_inside ? tensor.find('.', begin) : std::string::npos;
        parts.unit(std::string_view(tensor).substr(0, end)).tensors.push_back(tensor);
    }
    return parts.units.size() == 1 ? parts_of(parts.units[0]) : std::move(parts.units);
}

}  // namespace weights

std::vector<WeightUnit> find_weight_units(const TensorTable& table) {
    weights::Grouped found;
    for (const TensorEntry& entry : table.tensors) {
        const std::string_view name = entry.name;
        const auto end = weights::end_of_layer(name);
        found.unit(end ? name.substr(0, *end) : weights::module_of(name))
            .tensors.push_back(entry.name);
    }
    weights::sort_layers(found.units);
    return std::move(found.units);
}

}  // namespace penstock
