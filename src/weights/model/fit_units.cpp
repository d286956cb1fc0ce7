// SPDX-License-Identifier: Apache-2.0
// Divides units until they fit a budget. The forecast and streams of Python models ask this one.
#include "weights/model/unit_tensors.hpp"

#include <penstock/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr std::uint64_t kSmallBytesMax = 1 << 20;
constexpr std::uint64_t kSmallShare = 500;  // of all weights, one in so many

// The largest units that can be divided, divided. Equal ones are divided together: as long as one
// of them is whole, slots are as large.
std::optional<UnitsToFit> divided(const weights::Weights& all, const DivideUnits& divide) {
    std::vector<std::uint64_t> bytes(all.units.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        for (const std::size_t tensor : all.units[i]) {
            bytes[i] += all.tensors[tensor].bytes;
        }
    }
    std::vector<std::size_t> order(bytes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
    for (auto begin = order.begin(); begin != order.end();) {
        const auto end = std::find_if(
            begin, order.end(), [&](std::size_t unit) { return bytes[unit] != bytes[*begin]; });
        if (auto out = divide(std::span(begin, end))) {
            return out;
        }
        begin = end;
    }
    return std::nullopt;
}

}  // namespace

FittedUnits fit_weight_units(const TensorTable& table, UnitsToFit from,
                             const WeightStreamOptions& options, const DivideUnits& divide) {
    FittedUnits best;
    for (std::optional<UnitsToFit> next = std::move(from); next;) {
        const weights::Weights all = weights::weights_of(table, next->units);
        const std::uint64_t least =
            next->outside_bytes + weights::least_choice(all, options).used_bytes();
        const bool is_first = best.least_bytes == 0;
        if (is_first || least < best.least_bytes) {
            best = {std::move(next->units), next->outside_bytes, least};
        }
        if (least <= options.memory_bytes) {
            break;
        }
        next = divided(all, divide);
    }
    return best;
}

std::uint64_t small_weight_bytes(std::uint64_t all_bytes) noexcept {
    return std::min(kSmallBytesMax, all_bytes / kSmallShare);
}

}  // namespace penstock
