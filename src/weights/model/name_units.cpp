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
#include <unordered_set>
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

NamedUnits parts_of(const WeightUnit& unit) {
    const std::size_t begin = unit.name.size() + 1;
    Grouped parts;
    NamedUnits out;
    for (const std::string& tensor : unit.tensors) {
        std::size_t end = tensor.find('.', begin);
        if (end == std::string::npos || !tensor.starts_with(unit.name)) {
            out.stay.push_back(tensor);
            continue;
        }
        const std::size_t item = tensor.find('.', end + 1);
        const bool is_list = item != std::string::npos &&
                             is_number(std::string_view(tensor).substr(end + 1, item - end - 1));
        parts.unit(std::string_view(tensor).substr(0, is_list ? item : end))
            .tensors.push_back(tensor);
    }
    out.units = std::move(parts.units);
    return out.units.empty() ? NamedUnits() : out;
}

NamedUnits named_units(const TensorTable& table) {
    std::vector<WeightUnit> units = find_weight_units(table);
    std::unordered_set<std::string> outer;  // modules that have others in them
    bool has_modules = false;
    for (const WeightUnit& unit : units) {
        has_modules = has_modules || unit.tensors[0] != unit.name;
        for (std::size_t end = unit.name.rfind('.'); end != std::string::npos && end != 0;
             end = unit.name.rfind('.', end - 1)) {
            outer.insert(unit.name.substr(0, end));
        }
    }
    NamedUnits out;
    const auto keep = [&](const auto& stays) {
        for (WeightUnit& unit : std::exchange(units, {})) {
            if (stays(unit)) {
                out.stay.insert(out.stay.end(), unit.tensors.begin(), unit.tensors.end());
            } else {
                units.push_back(std::move(unit));
            }
        }
    };
    keep([&](const WeightUnit& unit) {
        return outer.contains(unit.name) || (has_modules && unit.tensors[0] == unit.name);
    });
    std::unordered_map<std::string_view, std::uint64_t> bytes;
    for (const TensorEntry& entry : table.tensors) {
        bytes.emplace(entry.name, entry.bytes);
    }
    const auto bytes_of = [&](const WeightUnit& unit) {
        std::uint64_t sum = 0;
        for (const std::string& tensor : unit.tensors) {
            sum += bytes.at(tensor);
        }
        return sum;
    };
    std::uint64_t all = 0;
    for (const WeightUnit& unit : units) {
        all += bytes_of(unit);
    }
    keep([&, small = small_weight_bytes(all)](const WeightUnit& unit) {
        return parts_of(unit).units.empty() && bytes_of(unit) <= small;
    });
    out.units = std::move(units);
    return out;
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
