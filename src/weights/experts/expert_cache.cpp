// SPDX-License-Identifier: Apache-2.0
#include "weights/experts/expert_cache.hpp"

#include "base/assert.hpp"

#include <bit>
#include <tuple>

namespace penstock::weights {

namespace {

// Counts are halved when the experts of a layer were chosen this often, each on average.
constexpr std::uint32_t kHalvedAfter = 16;

}  // namespace

ExpertCache::ExpertCache(std::size_t slots, const std::vector<std::size_t>& experts)
    : slots_(slots), layers_(experts.size()) {
    for (std::size_t layer = 0; layer < experts.size(); ++layer) {
        layers_[layer].counts.resize(experts[layer]);
        layers_[layer].slots.resize(experts[layer]);
    }
}

void ExpertCache::resize(std::size_t slots) {
    for (std::size_t slot = slots; slot < slots_.size(); ++slot) {
        PENSTOCK_ASSERT(slots_[slot].held == 0);
        clear(slot);
    }
    slots_.resize(slots);
}

std::optional<std::size_t> ExpertCache::find(Expert expert) const {
    return layers_[expert.layer].slots[expert.number];
}

void ExpertCache::count(Expert expert) {
    Layer& layer = layers_[expert.layer];
    ++layer.counts[expert.number];
    if (++layer.counted >= kHalvedAfter * layer.counts.size()) {
        layer.counted = 0;
        for (std::uint32_t& count : layer.counts) {
            count /= 2;
        }
    }
}

// The empty slot, else the least chosen, of equals the one whose layer is furthest from its turn.
std::optional<std::size_t> ExpertCache::victim(std::size_t layer) const {
    std::optional<std::size_t> best;
    std::tuple<int, std::size_t> of_best;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        if (slots_[slot].held != 0) {
            continue;
        }
        if (!slots_[slot].expert) {
            return slot;
        }
        const auto [its_layer, number] = *slots_[slot].expert;
        // 0: this layer, which has its turn now. 1: the one before it, whose next turn is last.
        const std::size_t since = (layer + layers_.size() - its_layer) % layers_.size();
        const std::tuple its{std::bit_width(layers_[its_layer].counts[number]), since};
        if (!best || its < of_best) {
            best = slot;
            of_best = its;
        }
    }
    return best;
}

std::optional<std::size_t> ExpertCache::take(Expert expert, std::size_t layer) {
    PENSTOCK_ASSERT(!find(expert));
    const std::optional<std::size_t> slot = victim(layer);
    if (slot) {
        clear(*slot);
        slots_[*slot].expert = expert;
        layers_[expert.layer].slots[expert.number] = slot;
    }
    return slot;
}

void ExpertCache::hold(std::size_t slot) {
    ++slots_[slot].held;
}

void ExpertCache::release(std::size_t slot) {
    PENSTOCK_ASSERT(slots_[slot].held != 0);
    --slots_[slot].held;
}

void ExpertCache::clear(std::size_t slot) {
    if (const std::optional<Expert> expert = slots_[slot].expert) {
        layers_[expert->layer].slots[expert->number].reset();
        slots_[slot].expert.reset();
    }
}

}  // namespace penstock::weights
