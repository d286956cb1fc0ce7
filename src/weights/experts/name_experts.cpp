// SPDX-License-Identifier: Apache-2.0
#include <penstock/weights.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

constexpr std::string_view kExperts = ".experts.";
constexpr std::uint64_t kExpertsMax = 1 << 16;  // of a layer: a table of rows is no mixture

// The expert that a name is of: 3 of "mlp.experts.3.up.weight"; nothing for "mlp.experts.up".
std::optional<std::size_t> number_in(std::string_view after) {
    std::size_t number = 0;
    const std::string_view part = after.substr(0, after.find('.'));
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    return error == std::errc() && end == part.data() + part.size() && part.size() != after.size()
               ? std::optional(number)
               : std::nullopt;
}

// The tensors below one "experts": of each expert by its number, and of all of them together.
struct Found {
    std::map<std::size_t, std::vector<const TensorEntry*>> by_number;
    std::vector<const TensorEntry*> together;

    [[nodiscard]] std::vector<std::vector<TensorPart>> experts() const {
        if (by_number.empty()) {
            return parts_of_joined();
        }
        std::vector<std::vector<TensorPart>> out;
        for (const auto& [number, tensors] : by_number) {
            if (number != out.size() || tensors.size() != by_number.begin()->second.size()) {
                return {};
            }
            std::vector<TensorPart>& parts = out.emplace_back();
            for (const TensorEntry* const tensor : tensors) {
                parts.push_back({tensor->name, 0, tensor->bytes});
            }
        }
        return together.empty() ? std::move(out) : std::vector<std::vector<TensorPart>>();
    }

private:
    // Each tensor has the experts as its first dimension.
    [[nodiscard]] std::vector<std::vector<TensorPart>> parts_of_joined() const {
        const std::uint64_t count = together[0]->shape.empty() ? 0 : together[0]->shape[0];
        const bool is_even =
            std::all_of(together.begin(), together.end(), [count](const TensorEntry* tensor) {
                return tensor->shape.size() > 1 && tensor->shape[0] == count &&
                       tensor->strides.empty() &&
                       tensor->bytes % std::max<std::uint64_t>(count, 1) == 0;
            });
        if (!is_even || count > kExpertsMax) {
            return {};
        }
        std::vector<std::vector<TensorPart>> out(count);
        for (std::size_t number = 0; number < out.size(); ++number) {
            for (const TensorEntry* const tensor : together) {
                const std::uint64_t bytes = tensor->bytes / count;
                out[number].push_back({tensor->name, number * bytes, bytes});
            }
        }
        return out;
    }
};

}  // namespace

std::vector<ExpertLayer> find_expert_layers(const TensorTable& table) {
    std::map<std::pair<std::size_t, std::string_view>, Found> found;  // by length: 9 before 10
    for (const TensorEntry& entry : table.tensors) {
        const std::string_view name = entry.name;
        const std::size_t at = name.find(kExperts);
        if (at == std::string_view::npos) {
            continue;
        }
        const std::string_view layer = name.substr(0, at + kExperts.size() - 1);
        Found& its = found[{layer.size(), layer}];
        if (const auto number = number_in(name.substr(at + kExperts.size()))) {
            its.by_number[*number].push_back(&entry);
        } else {
            its.together.push_back(&entry);
        }
    }
    std::vector<ExpertLayer> out;
    for (const auto& [key, its] : found) {
        if (std::vector<std::vector<TensorPart>> experts = its.experts(); experts.size() > 1) {
            out.push_back({std::string(key.second), std::move(experts)});
        }
    }
    return out;
}

}  // namespace penstock
